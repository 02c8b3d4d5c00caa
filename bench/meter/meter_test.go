package meter

import (
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"pgregory.net/rapid"
)

var sink []byte

func TestMeter(t *testing.T) {
	m, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	const size, n = 1 << 20, 64
	keep := make([][]byte, 0, n)
	for range n {
		sink = make([]byte, size)
		for i := range sink {
			sink[i] = 1 // so that it is resident
		}
		keep = append(keep, sink)
	}
	u, err := m.Stop()
	if err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(keep)
	if u.Allocs < n || u.Bytes < n*size || u.Bytes > 2*n*size {
		t.Errorf("%d allocations of %d bytes, want %d of %d or a little more", u.Allocs, u.Bytes, n, n*size)
	}
	if u.Elapsed <= 0 || u.CPU <= 0 {
		t.Errorf("it took %s, %s of the CPU", u.Elapsed, u.CPU)
	}
	if runtime.GOOS != "linux" {
		return
	}
	if u.BaseRSS <= 0 || u.PeakRSS < u.BaseRSS+n*size*3/4 {
		t.Errorf("%d bytes were resident, %d at most: want %d more", u.BaseRSS, u.PeakRSS, n*size)
	}
	// The next span knows nothing of that.
	sink = nil
	if m, err = Start(); err != nil {
		t.Fatal(err)
	}
	after, err := m.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if after.PeakRSS >= u.PeakRSS {
		t.Errorf("%d bytes were resident at most, %d before", after.PeakRSS, u.PeakRSS)
	}
}

func TestMachine(t *testing.T) {
	m := Machine("v1")
	if m.OS != runtime.GOOS || m.Version != "v1" || m.Go == "" || m.Cores < 1 {
		t.Errorf("machine %+v", m)
	}
	if runtime.GOOS == "linux" && (m.Memory < 1<<28 || m.Kernel == "") {
		t.Errorf("machine %+v", m)
	}
}

// TestHistogram: it agrees with a sorted list of the latencies, to 1 %.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			magnitude := rapid.Float64Range(0, 12).Draw(t, "magnitude")
			return time.Duration(math.Pow(10, magnitude))
		}), 1, 300).Draw(t, "latencies")
		var h Histogram
		sum := 0.0
		for _, d := range list {
			h.Record(d)
			sum += d.Seconds()
		}
		slices.Sort(list)
		got := h.Latency()
		if got.Count != int64(len(list)) {
			t.Fatalf("%d latencies, want %d", got.Count, len(list))
		}
		for _, q := range []struct{ share, got float64 }{
			{0.5, got.P50}, {0.9, got.P90}, {0.99, got.P99}, {0.999, got.P999}, {1, got.Max},
		} {
			rank := max(int(math.Round(q.share*float64(len(list)))), 1)
			want := list[rank-1].Seconds()
			if math.Abs(q.got-want) > want/100 {
				t.Fatalf("share %g: %g s, want %g", q.share, q.got, want)
			}
		}
		if mean := sum / float64(len(list)); math.Abs(got.Mean-mean) > mean/1e6 {
			t.Fatalf("mean %g, want %g", got.Mean, mean)
		}
	})
	var h Histogram
	if got := h.Latency(); got.Count != 0 || got.Max != 0 {
		t.Errorf("nothing was recorded, and it is %+v", got)
	}
	h.Record(-time.Second)
	h.Record(3 * time.Hour)
	if got := h.Latency(); got.Count != 2 || got.P50 != 0 || got.Max != (3*time.Hour).Seconds() {
		t.Errorf("out of range: %+v", got)
	}
}

// TestProfile takes one of a process that hashes.
func TestProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu")
	p, err := StartProfile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := StartProfile(""); err == nil {
		t.Error("a second profile was begun")
	}
	start, err := cpuTime()
	if err != nil {
		t.Fatal(err)
	}
	data, sum := make([]byte, 1<<16), uint32(0)
	for now := start; now < start+300*time.Millisecond; now, _ = cpuTime() {
		sum += crc32.ChecksumIEEE(data)
	}
	got, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if got.Shares[partHash] < 0.5 || len(got.Top) == 0 || len(got.Top) > topLines {
		t.Errorf("hashing took %v, the top is %v (%d)", got.Shares, got.Top, sum)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := profile.ParseData(raw); err != nil {
		t.Errorf("the file is no profile: %v", err)
	}
}

// stack is a sample of a profile, the innermost function first. What stands in one
// group was inlined into its last function.
type stack struct {
	groups [][]string
	value  int64
}

func profileOf(stacks []stack) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	for _, s := range stacks {
		sample := &profile.Sample{Value: []int64{1, s.value}}
		for _, group := range s.groups {
			l := &profile.Location{}
			for _, f := range group {
				l.Line = append(l.Line, profile.Line{Function: &profile.Function{Name: f}})
			}
			sample.Location = append(sample.Location, l)
		}
		p.Sample = append(p.Sample, sample)
	}
	return p
}

func TestSumUp(t *testing.T) {
	const lane = module + "applier.(*writer).run"
	plain := func(functions ...string) (groups [][]string) {
		for _, f := range functions {
			groups = append(groups, []string{f})
		}
		return groups
	}
	for want, s := range map[string][][]string{
		partSyscall:               plain("syscall.Syscall6", "internal/poll.(*FD).Write", "net.(*conn).Write", lane),
		partSyscall + " of waits": plain("runtime.futex", "runtime.futexsleep", "runtime.findRunnable", "runtime.schedule"),
		partHash:                  plain(module+"oplog.HashID", lane),
		partHash + " by the way":  plain("github.com/spaolacci/murmur3.bmix32", module+"oplog.(*x).y", lane),
		partCopy:                  plain("runtime.memmove", lane),
		partGC:                    plain("runtime.memclrNoHeapPointers", "runtime.scanobject", "runtime.gcDrain", "runtime.gcBgMarkWorker"),
		partAlloc:                 plain("runtime.memclrNoHeapPointers", "runtime.mallocgc", "runtime.makeslice", lane),
		partSchedule:              plain("runtime.casgstatus", "runtime.goready", "runtime.send", "runtime.chansend", lane),
		partBSON:                  plain(module+"internal/rawbson.(*Iter).Next", lane),
		partDriver:                plain("go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology.(*pool).checkOut", lane),
		"applier":                 plain("runtime.mapaccess2_faststr", "maps.Keys[...]", lane),
		"applier/plan":            {{module + "applier/plan.keyOf[go.shape.struct { " + module + "oplog.N string }]", module + "applier/plan.(*Planner).Plan"}, {lane}},
		"bench/ends":              plain("bufio.(*Reader).Peek", module+"bench/ends.(*nullConn).serve"),
		partOther:                 plain("runtime.rt0_go"),
	} {
		got := sumUp(profileOf([]stack{{s, 10}}))
		part := want
		for i := range want {
			if want[i] == ' ' {
				part = want[:i]
				break
			}
		}
		if got.Shares[part] != 1 {
			t.Errorf("%s: %v", want, got.Shares)
		}
	}

	got := sumUp(profileOf([]stack{
		{plain("runtime.memmove", "a", "b", "a"), 30},
		{plain("a", "b"), 60},
		{plain("b"), 10},
	}))
	want := map[string][2]float64{"a": {0.6, 0.9}, "runtime.memmove": {0.3, 0.3}, "b": {0.1, 1}}
	for i, name := range []string{"a", "runtime.memmove", "b"} {
		l := got.Top[i]
		if l.Function != name || math.Abs(l.Flat-want[name][0]) > 1e-9 || math.Abs(l.Cum-want[name][1]) > 1e-9 {
			t.Errorf("line %d is %+v, want %s %v", i, l, name, want[name])
		}
	}
	if empty := sumUp(&profile.Profile{}); len(empty.Shares) != 0 || len(empty.Top) != 0 {
		t.Errorf("nothing was sampled, and it is %+v", empty)
	}
}
