package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/verify/standing"
)

// readyNow is a snapshot of a link that is ready.
func readyNow() *Snapshot {
	at := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	lag, age, left := 0.25, 0.5, 7200.0
	return &Snapshot{
		Link: "dr", At: at, StartedAt: at.Add(-time.Hour), State: string(monitor.Steady), Since: at.Add(-time.Minute),
		Consistent: true, LagSeconds: &lag, Source: Source{DataAgeSeconds: &age}, OplogWindowLeftSeconds: &left,
		Cut: &Cut{Source: &OpTime{T: 7, I: 1}, AgeSeconds: 3}, Control: &Control{}, Guard: &Guard{Mode: "alarm", Watching: true},
		Verified: verifiedNow(at), Diverged: NewDiverged(nil),
	}
}

// verifiedNow is a link that was verified 20 minutes before.
func verifiedNow(at time.Time) *Verified {
	began := at.Add(-20 * time.Minute)
	return NewVerified(&standing.Standing{
		AsOf:        &standing.Cut{Source: bson.Timestamp{T: uint32(began.Unix()), I: 3}, Target: bson.Timestamp{T: uint32(began.Unix()), I: 9}, At: began.Add(time.Second)},
		Collections: 4, Verified: 4, Round: standing.Round{N: 1, Complete: 1},
	}, at)
}

// standings are the preconditions that are not met, by name.
func standings(r *Readiness) map[string]Standing {
	out := map[string]Standing{}
	for _, p := range r.Preconditions {
		if p.Standing != Met {
			out[p.Name] = p.Standing
		}
	}
	return out
}

// TestReadiness: each precondition alone keeps a link from being ready, and says why; an unknown one
// is not met.
func TestReadiness(t *testing.T) {
	t.Parallel()
	number := func(f float64) *float64 { return &f }
	for _, c := range []struct {
		name, value string
		standing    Standing
		change      func(*Snapshot)
	}{
		{"steady", "the link is catching-up: the spool", Unmet, func(s *Snapshot) { s.State, s.Reason = string(monitor.CatchingUp), "the spool" }},
		{"steady", "the link is stopped", Unmet, func(s *Snapshot) { s.State = string(monitor.Stopped) }},
		{"consistent", "the target is not consistent", Unmet, func(s *Snapshot) { s.Consistent = false }},
		{"lag", "how far the target lags is not known", NotKnown, func(s *Snapshot) { s.LagSeconds = nil }},
		{"lag", "10.1 s, more than 10s", Unmet, func(s *Snapshot) { s.LagSeconds = number(10.1) }},
		{"cut", "the link has made no consistent cut: a collection is left out", Unmet, func(s *Snapshot) { s.Cut, s.NoCut = nil, "a collection is left out" }},
		{"cut", "the newest consistent cut is that of 7:1, older than 5m0s", Unmet, func(s *Snapshot) { s.Cut.AgeSeconds = 301 }},
		{"divergences", "2 since 2026-11-24 11:00:00 UTC", Unmet, func(s *Snapshot) { s.Applier.Divergences, s.Diverged = 2, nil }},
		{"divergences", "the divergences are not known", NotKnown, func(s *Snapshot) { s.Diverged = nil }},
		{"divergences", "3 operations in shop.a, shop.b since 2026-11-20 10:00:00 UTC", Unmet, func(s *Snapshot) {
			s.Diverged = NewDiverged([]checkpoint.Diverged{
				{NS: "shop.a", Source: "shop.a", Ops: 2, Since: time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)},
				{NS: "shop.b", Source: "shop.b", Ops: 1, Since: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)},
			})
		}},
		{"verified", "the verified collections are not known", NotKnown, func(s *Snapshot) { s.Verified = nil }},
		{"verified", "not verified: shop.a: something else has written to it", Unmet, func(s *Snapshot) {
			s.Verified.At, s.Verified.Why = nil, "not verified: shop.a: something else has written to it"
		}},
		{"verified", "verified as of 2026-11-24 11:40:00 UTC, longer ago than 1h0m0s", Unmet, func(s *Snapshot) { s.Verified.AgeSeconds = number(3601) }},
		{"verified", "2 differences in shop.a", Unmet, func(s *Snapshot) {
			s.Verified.Differences, s.Verified.Differing = 2, []DifferingNamespace{{Namespace: "shop.a", Source: "shop.a"}}
		}},
		{"foreign-writes", "whether something else writes to the target is not known", NotKnown, func(s *Snapshot) { s.Guard = nil }},
		{"foreign-writes", "foreign writes are not watched for: off", NotKnown, func(s *Snapshot) { s.Guard = &Guard{Mode: "off"} }},
		{"foreign-writes", "something else has written to shop.a", Unmet, func(s *Snapshot) { s.Guard.Namespaces = []ForeignNamespace{{Namespace: "shop.a"}} }},
		{"left-out", "shop.a", Unmet, func(s *Snapshot) { s.LeftOut = []LeftOut{{Namespace: "shop.a"}} }},
		{"kept-back", "shop.b", Unmet, func(s *Snapshot) { s.KeptBack = []KeptBack{{Namespace: "shop.b"}} }},
		{"lacking", "the view shop.v", Unmet, func(s *Snapshot) { s.LackingViews = []LackingView{{Namespace: "shop.v"}} }},
		{"lacking", "the index i of shop.a", Unmet, func(s *Snapshot) { s.LackingIndexes = []LackingIndex{{Namespace: "shop.a", Name: "i"}} }},
		{"lacking", "the validator of shop.a", Unmet, func(s *Snapshot) { s.LackingOptions = []LackingOption{{Namespace: "shop.a", Name: "validator"}} }},
		{"paused", "paused by ann@db1", Unmet, func(s *Snapshot) { s.Control.Paused = &Paused{By: "ann@db1"} }},
		{"paused", "whether the link is paused is not known", NotKnown, func(s *Snapshot) { s.Control = nil }},
		{"paused", "whether the link is paused cannot be read since 12:00:00 UTC", NotKnown, func(s *Snapshot) { s.Control.Throttle.UnreadSince = &s.At }},
		{"oplog-window", "how long the source's oplog lasts is not known", NotKnown, func(s *Snapshot) { s.OplogWindowLeftSeconds = nil }},
		{"oplog-window", "the source's oplog lasts 9 min at its present pace, less than 10m0s", Unmet, func(s *Snapshot) { s.OplogRolloverSeconds = number(599) }},
		{"oplog-window", "the source's oplog no longer has the entries to read next", Unmet, func(s *Snapshot) {
			s.OplogRolloverSeconds, s.OplogWindowLeftSeconds = number(3600), number(0)
		}},
	} {
		s := readyNow()
		c.change(s)
		r := s.Readiness(ReadinessLimits{})
		if diff := cmp.Diff(map[string]Standing{c.name: c.standing}, standings(&r)); diff != "" || r.Ready {
			t.Errorf("%s, %s: ready %v %s", c.name, c.value, r.Ready, diff)
		}
		for _, p := range r.Preconditions {
			if p.Name == c.name && (!strings.HasPrefix(p.Value, c.value) || p.Next == "") {
				t.Errorf("%s: %q, next %q; want %q", c.name, p.Value, p.Next, c.value)
			}
		}
	}
}

// TestReadinessIsReady: a link is ready if everything is met or waived, by the limits that are
// asked for, and what a process says over HTTP gives the same answer.
func TestReadinessIsReady(t *testing.T) {
	t.Parallel()
	s := readyNow()
	r := s.Readiness(ReadinessLimits{})
	if diff := cmp.Diff(map[string]Standing{}, standings(&r)); diff != "" || !r.Ready {
		t.Errorf("ready %v %s", r.Ready, diff)
	}
	waived := append([]Precondition{}, r.Preconditions...)
	for i := range waived {
		if waived[i].Standing != Met {
			waived[i].Standing = Waived
		}
	}
	if r := NewReadiness(waived); !r.Ready {
		t.Errorf("everything is met or waived: %v", standings(&r))
	}
	if r := NewReadiness([]Precondition{{Standing: Met}, {Standing: NotKnown}}); r.Ready {
		t.Error("ready, and something is not known")
	}
	for i, p := range r.Preconditions {
		aged := p.Name == "lag" || p.Name == "cut" || p.Name == "verified"
		if (p.AgeSeconds != nil) != aged {
			t.Errorf("%d %s: age %v", i, p.Name, p.AgeSeconds)
		}
	}
	strict := s.Readiness(ReadinessLimits{Lag: 200 * time.Millisecond, CutAge: 2 * time.Second, Verified: 20*time.Minute - time.Second})
	if diff := cmp.Diff(map[string]Standing{"verified": Unmet, "lag": Unmet, "cut": Unmet}, standings(&strict)); diff != "" {
		t.Error(diff)
	}
	var read Snapshot
	must.Succeed(t, json.Unmarshal([]byte(jsonOf(t, s)), &read))
	if diff := cmp.Diff(r, read.Readiness(ReadinessLimits{})); diff != "" {
		t.Errorf("as JSON: %s", diff)
	}
}

// TestReadyToCutover: the process that leads shows it, one that stands by does not.
func TestReadyToCutover(t *testing.T) {
	t.Parallel()
	tr := newTracker(t, Config{Link: "dr"})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	p.set(func(s *monitor.Snapshot) { steadily(s); s.Control = &control.Status{Known: true} })
	if s := tr.Snapshot(); s.ReadyToCutover == nil || len(s.ReadyToCutover.Preconditions) != len(preconditions) {
		t.Errorf("%v", s.ReadyToCutover)
	}
	p.set(func(s *monitor.Snapshot) { s.State = monitor.Standby })
	if s := tr.Snapshot(); s.ReadyToCutover != nil {
		t.Errorf("a process that stands by: %v", s.ReadyToCutover)
	}
}
