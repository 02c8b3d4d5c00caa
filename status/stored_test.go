package status

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/lease"
)

// TestStored: what the metadata say of a link that nobody can be asked about.
func TestStored(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	led := lease.Sighting{Record: lease.Record{Term: 4, Holder: "vm:a", Grant: lease.Grant{ID: bson.NewObjectID()}}}
	free, older, released := led, led, led
	free.Free = true
	older.Record.Grant = lease.Grant{}
	released.Record.Grant.Released = true
	state := func(age time.Duration) checkpoint.State {
		return checkpoint.State{Applied: at(1000), AppliedWall: now.Add(-age).UnixMilli(), FetchFrom: at(990)}
	}
	copied := state(time.Second)
	copied.Copy, copied.CopiedUntil = &checkpoint.Copy{Phase: checkpoint.Replaying}, at(2000)
	over := state(4 * time.Second)
	over.Over = &checkpoint.Over{At: now.Add(-time.Minute), By: "ann"}
	lost, inexact := over, over
	lost.Over = &checkpoint.Over{At: now.Add(-time.Minute), By: "ann", Promoted: &checkpoint.Promoted{Exact: true}}
	inexact.Over = &checkpoint.Over{At: now.Add(-time.Minute), By: "ann", Promoted: &checkpoint.Promoted{}}
	left := state(time.Second)
	left.LeftOut = []checkpoint.LeftOut{{NS: "shop.a", Since: at(900), Wall: now.Add(-time.Minute).UnixMilli()}, {NS: "shop.b", Since: at(950), Failed: "too long"}}
	under := Cutover{State: "running", Step: "freeze", Since: now.Add(-time.Hour), By: "ann@ops1", BlocksSource: true}
	dead, cancelling := under, under
	committed := under
	committed.Interrupted, committed.Committed = true, true
	dead.Interrupted, cancelling.Interrupted, cancelling.State = true, true, "cancelling"
	const interrupted = "A cutover was interrupted at step freeze, which ann@ops1 began at 2026-03-01 11:00:00 UTC: no process works on it. Writes to the source may still be blocked by it."
	blocked := committed
	blocked.Step, blocked.TargetBlocked = "unblock", true
	unblocking := blocked
	unblocking.Interrupted = false
	const either = " It can be resumed, or cancelled (--cancel)."
	failed := dead
	failed.Failed, failed.OnlyCancel = "it is so.", true
	converting, cutting := state(4*time.Second), led
	converting.Converting, cutting.Record.Grant.Why = &checkpoint.Converting{By: "ann@ops1"}, lease.ForCutover
	const standsBy = "As of the metadata, the target has everything up to 2026-03-01 11:59:56 UTC, 4.0 s ago; nothing is applied while the cutover is between convert and its end: processes of the link stand by."
	for _, tt := range []struct {
		name  string
		s     Stored
		level Level
		want  string
		next  string
	}{
		{"promoted", Stored{State: lost, Lease: free}, Good, "Promoted at 2026-03-01 11:59:00 UTC by ann, as its source was lost: applications use the target, and nothing of the source is applied any more.", ""},
		{"promoted, not exact", Stored{State: inexact, Lease: free}, Attention, "Promoted at 2026-03-01 11:59:00 UTC", ""},
		{"promoted, options deferred", Stored{State: lost, Lease: free, Deferred: 11}, Attention, "Promoted at 2026-03-01 11:59:00 UTC", "replicator promote --link l …"},
		{"led", Stored{State: state(4 * time.Second), Lease: led}, Good, "As of the metadata, the target has everything up to 2026-03-01 11:59:56 UTC, 4.0 s ago; vm:a runs the link.", ""},
		{"the position stands", Stored{State: state(5 * time.Minute), Lease: led}, Unknown, "5 min ago; vm:a runs the link.", ""},
		{"nobody", Stored{State: state(4 * time.Second), Lease: free}, Broken, "No process runs the link. As of the metadata, the target has", "replicator run --link l"},
		{"released", Stored{State: state(4 * time.Second), Lease: released}, Broken, "No process runs the link.", "replicator run"},
		{"cut over", Stored{State: over, Lease: free}, Good, "Cut over at 2026-03-01 11:59:00 UTC by ann: applications use the target, and nothing of the source is applied any more.", ""},
		{"no lease", Stored{State: state(4 * time.Second), Lease: older}, Unknown, "does not renew a lease", ""},
		{"copying", Stored{State: copied, Lease: led}, Working, "The target is not consistent yet; vm:a runs the link.", ""},
		{"left out", Stored{State: left, Lease: led}, Broken, "vm:a runs the link.", "replicator resync --link l --namespace shop.b"},
		{"cut over now", Stored{State: state(4 * time.Second), Lease: led, Cutover: &under}, Good, "vm:a runs the link.", ""},
		{"converts now", Stored{State: converting, Lease: cutting, Cutover: &under}, Working, standsBy, ""},
		{"about to convert", Stored{State: state(4 * time.Second), Lease: cutting, Cutover: &under}, Working, standsBy, ""},
		{"converts, no lease at the moment", Stored{State: converting, Lease: free, Cutover: &under}, Working, standsBy, ""},
		{"interrupted", Stored{State: state(4 * time.Second), Lease: led, Cutover: &dead}, Attention, interrupted + either, "replicator cutover --link l --resume …"},
		{"interrupted, nobody", Stored{State: state(4 * time.Second), Lease: free, Cutover: &dead}, Broken, interrupted + either, "replicator cutover --link l --resume"},
		{"only to be cancelled", Stored{State: state(4 * time.Second), Lease: led, Cutover: &failed}, Attention, interrupted + " Its last error: it is so. It can only be cancelled (--cancel)", "replicator cutover --link l --cancel …"},
		{"cancelled halfway", Stored{State: state(4 * time.Second), Lease: led, Cutover: &cancelling}, Attention, interrupted + " It was being cancelled.", "replicator cutover --link l --cancel …"},
		{"target blocked", Stored{State: over, Lease: free, Cutover: &blocked}, Attention, "no process works on it. Applications cannot write to the target yet. Writes to the source", "replicator cutover --link l --resume"},
		{"unblocks", Stored{State: over, Lease: free, Cutover: &unblocking}, Working, "Cut over at 2026-03-01 11:59:00 UTC by ann: nothing of the source is applied any more. Applications cannot write to the target yet.", ""},
		{"not done", Stored{State: over, Lease: free, Cutover: &committed}, Attention, interrupted + " It can be resumed.", "replicator cutover --link l --resume"},
	} {
		tt.s.Link, tt.s.At = "l", now
		v := tt.s.Verdict()
		if v.Level != tt.level || !strings.Contains(v.Sentence, tt.want) || !strings.HasPrefix(v.Next, tt.next) || v.Next != "" && tt.next == "" {
			t.Errorf("%s: %+v", tt.name, v)
		}
		if c := tt.s.Cutover; c != nil && (c.Interrupted != (v.Name == "cutover-interrupted") || len(v.Also) != 1) {
			t.Errorf("%s: %+v", tt.name, v)
		}
		if lag := tt.s.Lag(); (lag == nil) != (tt.name == "copying" || tt.s.State.Over != nil) {
			t.Errorf("%s: lag %v", tt.name, lag)
		}
	}
}

// TestStoredConverting: while a cutover that was interrupted keeps every process from leading, it is not said that none runs the link.
func TestStoredConverting(t *testing.T) {
	now := time.Now()
	s := Stored{
		Link: "l", At: now, Lease: lease.Sighting{Free: true}, State: checkpoint.State{Applied: at(1000), FetchFrom: at(990), Converting: &checkpoint.Converting{}},
		Cutover: &Cutover{State: "running", Step: "convert", Since: now, Interrupted: true},
	}
	v := s.Verdict()
	if v.Level != Broken || strings.Contains(v.Sentence+v.Also[0], "No process runs the link") || !strings.Contains(v.Also[0], "processes of the link stand by") {
		t.Errorf("%+v", v)
	}
}

// TestStoredForeign: the foreign writes of a link that nobody can be asked about are told while they are open.
func TestStoredForeign(t *testing.T) {
	t.Parallel()
	touched := &guard.State{Touched: []guard.Touched{{NS: "store.a", Count: 3}}}
	for name, tt := range map[string]struct {
		known *guard.State
		want  string
	}{
		"not read": {nil, ""},
		"none":     {&guard.State{Counts: map[string]int64{"insert": 3}}, ""},
		"one":      {touched, "written to store.a, and that was not dealt with: replicator guard --link l … has the writes."},
		"unlisted": {&guard.State{More: 2}, "written to namespaces that are not listed, and"},
		"both":     {&guard.State{Touched: touched.Touched, More: 2}, "written to store.a, and to namespaces that are not listed, and"},
	} {
		s := Stored{Link: "l", State: checkpoint.State{Applied: at(1000)}, At: time.Now(), Guard: tt.known}
		if also := strings.Join(s.Verdict().Also, "\n"); !strings.Contains(also, tt.want) || (also == "") != (tt.want == "") {
			t.Errorf("%s: %s", name, also)
		}
		s.State.AppliedWall = s.At.UnixMilli()
		s.Lease = lease.Sighting{Record: lease.Record{Holder: "vm:1", Grant: lease.Grant{ID: bson.NewObjectID()}}}
		if v := s.Verdict(); v.Level == Good != (tt.want == "") || tt.want != "" && (v.Name != "foreign-writes" || v.Level != Attention || !strings.Contains(v.Sentence, tt.want)) {
			t.Errorf("%s, and it is run: %+v", name, v)
		}
	}
}
