package bench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// small is a backlog for a test: 200 inserts, 200 updates, 100 deletes.
func small() workload.Workload {
	return workload.Workload{Name: "small", Seed: 7, Ops: 500, Documents: 40, Size: 250, Namespaces: 2, Phases: true}
}

func TestCatchUp(t *testing.T) {
	var progress bytes.Buffer
	run := must.Get(CatchUp(t.Context(), Config{Workload: small(), Rounds: 2, Writers: 4, BatchOps: 100, FlushDocs: 50, Progress: &progress}))(t)
	r := runFigures{run, "catch-up/small"}
	r.check(t, "catch-up", 500, 2)
	if run.Source != oneEmbedded || run.Target != oneEmbedded {
		t.Errorf("from %q to %q", run.Source, run.Target)
	}
	for name, want := range map[string]float64{"writers": 4, "batch": 100, "flush": 50, "namespaces": 2, "size": 250} {
		if run.Settings[name] != want {
			t.Errorf("%s is %g, want %g", name, run.Settings[name], want)
		}
	}
	if !strings.Contains(progress.String(), "catch-up 2 of 2: 500 operations") {
		t.Errorf("it said %q", progress.String())
	}
}

// Ends that connection strings name are used as they are: existing data stays, unless
// it may go, and nothing of a run does.
func TestCatchUpElsewhere(t *testing.T) {
	start := func(seed int64) string {
		return mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, TTLInterval: -1}).URI()
	}
	c := Config{Workload: small(), Rounds: 2, Writers: 4, Source: start(1), Target: start(2)}
	collections, err := collectionsOf(c.Workload)
	if err != nil {
		t.Fatal(err)
	}
	ns, dbs := collections[0].NS, ends.Databases(collections)
	target, err := ends.Open(t.Context(), c.Target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	must.Succeed(t, target.Fill(t.Context(), collections[:1]))
	documents := int64(len(collections[0].Documents))

	_, err = CatchUp(t.Context(), c)
	if there, ok := errors.AsType[*ExistsError](err); !ok || !slices.Equal(there.Databases, dbs) {
		t.Errorf("with data at the target: %v", err)
	}
	source, err := ends.Open(t.Context(), c.Source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.Close)
	if there, err := source.Existing(t.Context(), append(dbs, ends.MetaDB)); err != nil || len(there) > 0 {
		t.Errorf("at the source there are %v, %v, though nothing was done", there, err)
	}
	if n, err := count(t.Context(), target.Set, ns); err != nil || n != documents {
		t.Errorf("then there are %d documents, %v; want %d", n, err, documents)
	}
	c.Overwrite = true
	run, err := CatchUp(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := runFigures{run, "catch-up/small"}
	r.check(t, "catch-up", 500, 2)
	if run.Source != oneEmbedded || run.Target != oneEmbedded {
		t.Errorf("from %q to %q, though they play a version only", run.Source, run.Target)
	}
	// A set has many names.
	same := c
	same.Target = strings.Replace(c.Source, "?", "?appName=other&", 1)
	if _, err := CatchUp(t.Context(), same); err == nil || !strings.Contains(err.Error(), "the same set") {
		t.Errorf("from a set to itself: %v", err)
	}
	left, err := target.Existing(t.Context(), append(dbs, ends.MetaDB))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the target: %v, %v", left, err)
	}
}

func TestCatchUpRefuses(t *testing.T) {
	for name, c := range map[string]Config{
		"a null target":          {Workload: small(), Target: nullEnd},
		"a log in memory":        {Workload: small(), Source: memoryEnd},
		"one set":                {Workload: small(), Source: "mongodb://a", Target: "mongodb://a"},
		"a workload like none":   {Workload: workload.Workload{Name: "bad", Ops: -1}},
		"no such number":         {Workload: small(), Writers: -1},
		"somebody else's syntax": {Workload: small(), Target: "http://a"},
	} {
		if _, err := CatchUp(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSecondary(t *testing.T) {
	run, err := Secondary(t.Context(), Config{Workload: small(), Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	r := runFigures{run, "secondary/small"}
	r.check(t, "secondary", 500, 2)
	if run.Ends() != "embedded 5.0 (2 members) → embedded 5.0 (2 members)" {
		t.Errorf("from %q to %q", run.Source, run.Target)
	}
	if _, err := Secondary(t.Context(), Config{Workload: small(), Mongod: t.TempDir() + "/none"}); err == nil {
		t.Error("a server was started from a file that is not there")
	}
}

// same reports missing documents.
func TestSame(t *testing.T) {
	var both [2]*ends.End
	collections, err := collectionsOf(small())
	if err != nil {
		t.Fatal(err)
	}
	for i := range both {
		if both[i], err = ends.StartEmbedded(t.Context(), int64(i), 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(both[i].Close)
		must.Succeed(t, both[i].Fill(t.Context(), collections))
	}
	check := func(want string) {
		t.Helper()
		for _, kind := range []result.EndKind{result.EndEmbedded, result.EndReal} {
			a, b := *both[0], *both[1]
			a.Is.Kind, b.Is.Kind = kind, kind
			err := same(t.Context(), &a, &b, "none", collections)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", kind, err, want)
			}
		}
	}
	check("")
	collections[1].Documents = collections[1].Documents[1:]
	must.Succeed(t, both[1].Fill(t.Context(), collections))
	check(string(collections[1].NS))
}

func TestMirror(t *testing.T) {
	w := must.Get(workload.Preset("mixed"))(t)
	w.Seed, w.Documents = 7, 300
	run := must.Get(Mirror(t.Context(), Config{Workload: w, Rate: 400, Duration: time.Second, Writers: 4}))(t)
	if run.Ops < 400 || run.Settings["rate"] != 400 {
		t.Errorf("%d operations at %g/s", run.Ops, run.Settings["rate"])
	}
	if got := run.Ends(); got != "embedded 5.0 (3 members) → embedded 5.0 (1 member)" {
		t.Errorf("from %s", got)
	}
	if slices.ContainsFunc(run.Notes, func(note string) bool { return strings.Contains(note, "journal") }) {
		t.Errorf("notes %q", run.Notes)
	}
	r := runFigures{run, "mirror/mixed"}
	r.check(t, "mirror", int(run.Ops), 1)
	if took := run.Rounds[0]; took < 0.9 {
		t.Errorf("a second's work took %g s", took)
	}
	for name, least := range map[string]int64{acknowledged: 300, commitToApplied: 400, majority: 1, probed: 1} {
		l := run.Latencies[name]
		if l.Count < least {
			t.Errorf("%s: %d of them, want %d or more", name, l.Count, least)
		}
		if l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max*1.01 || l.Max > 30 {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// A mirror of a set with too few members to commit quickly says so; what a probe's own
// write takes does not count as the link's.
func TestMirrorNotes(t *testing.T) {
	m := &mirror{cfg: Config{Rate: 100}}
	sent := time.Now()
	m.seen(sent, sent.Add(100*time.Millisecond), sent.Add(107*time.Millisecond))
	if own, probes := m.own.Latency(), m.probes.Latency(); own.Max < 0.099 || own.Max > 0.101 || probes.Max < 0.0069 || probes.Max > 0.0071 {
		t.Errorf("its own %+v, then %+v", own, probes)
	}
	for members, want := range map[int]bool{1: true, 2: true, 3: false, 5: false} {
		run := &result.Run{Source: result.End{Kind: result.EndReal, Version: "5.0.7", Members: members}, Ops: 100, Rounds: []float64{1}}
		notes := m.notes(run)
		if got := slices.ContainsFunc(notes, func(note string) bool {
			return strings.Contains(note, "the source is "+run.Source.String()+":") && strings.Contains(note, "journal")
		}); got != want {
			t.Errorf("%d members: %q", members, notes)
		}
	}
}

// TestCacheGB: a server's cache follows the machine, two of them in what one would take.
func TestCacheGB(t *testing.T) {
	for memory, want := range map[int64]float64{0: 0, 1 << 30: 0.25, 9 << 30: 2, 25 << 30: 6} {
		if got := cacheGB(memory); got != want {
			t.Errorf("of %d bytes %g GiB, want %g", memory, got, want)
		}
	}
}

// An entry that seems applied before its commit counts as zero.
func TestMirrorOfAnotherClock(t *testing.T) {
	m := &mirror{}
	now := time.Now()
	m.flushed(3, 0, time.UnixMilli(7))
	m.flushed(2, bson.NewDateTimeFromTime(now.Add(time.Hour)), now)
	if l := m.applied.Latency(); l.Count != 5 || l.Max < 0.0069 || l.Max > 0.0071 {
		t.Errorf("%+v", l)
	}
}

func TestLinkName(t *testing.T) {
	if a, b := linkName("apply", 1), linkName("apply", 1); a == b {
		t.Errorf("two links are called %s", a)
	}
}

func TestRounds(t *testing.T) {
	var all rounds
	for _, r := range []struct {
		seconds    int
		allocs     uint64
		base, peak int64
	}{{9, 90, 10, 20}, {1, 10, 10, 60}, {5, 50, 30, 70}, {7, 70, 50, 51}} {
		took := time.Duration(r.seconds) * time.Second
		all = append(all, meter.Usage{Elapsed: took, CPU: 2 * took, Allocs: r.allocs, Bytes: 100 * r.allocs, BaseRSS: r.base, PeakRSS: r.peak})
	}
	run := &result.Run{Ops: 10}
	all.into(run)
	want := &result.Run{
		Ops: 10, Rounds: []float64{9, 1, 5, 7}, CPUSeconds: 10, AllocsPerOp: 5, BytesPerOp: 500, BaseRSS: 10, PeakRSS: 60,
	}
	if diff := cmp.Diff(want, run); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := &result.Run{Ops: 10}
	rounds{}.into(none)
	if len(none.Rounds) != 0 || none.CPUSeconds != 0 {
		t.Errorf("of no round: %+v", none)
	}
}

// slowMajority answers for a set whose majority has the newest entry only after some
// questions.
type slowMajority struct{ asked int }

func (s *slowMajority) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	newest := uint32(9)
	if cmd.Body.Lookup("readConcern", "level").StringValue() == "majority" {
		if s.asked++; s.asked < 4 {
			newest = 5
		}
	}
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{
		bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: newest}}, {Key: "t", Value: int64(3)}},
	}}}}})
}

// The newest entry counts once a majority has it.
func TestNewest(t *testing.T) {
	set := &slowMajority{}
	got, err := newest(t.Context(), set)
	if want := oplog.NewOpTime(1, 9, 3); err != nil || got != want || set.asked != 4 {
		t.Errorf("%s after %d questions, %v; want %s after 4", got, set.asked, err, want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("given up")
	cancel(cause)
	if _, err := newest(ctx, &slowMajority{}); !errors.Is(err, cause) {
		t.Errorf("given up: %v", err)
	}
}
