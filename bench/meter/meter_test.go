package meter

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

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
	stop, err := Profile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Profile(file + "2"); err == nil {
		t.Error("a second profile was begun")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) { // a profile is compressed by gzip
		t.Errorf("no profile: %d bytes, %v", len(raw), err)
	}
	if _, err := Profile(filepath.Join(file, "x")); err == nil {
		t.Error("a profile was written below a file")
	}
}
