package monitor

import (
	"testing"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// TestPosition: a position says whether the link is paused, and copies; without a brake it never is paused.
func TestPosition(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{true, false} {
		m := New(Config{Paused: func() bool { return paused }})
		m.SetGaps(checkpoint.Gaps{Copying: !paused})
		if at := m.Position(); at.Paused != paused || at.Copying == paused {
			t.Errorf("paused: %t: %+v", paused, at)
		}
	}
	if at := New(Config{}).Position(); at.Paused {
		t.Errorf("without a brake: %+v", at)
	}
}

// TestOfPart: a part is consistent once it is copied, and steady with its pipeline.
func TestOfPart(t *testing.T) {
	t.Parallel()
	at := oplog.OpTime{Term: 1}
	for name, tt := range map[string]struct {
		s    Snapshot
		want resync.Status
	}{
		"starting": {Snapshot{State: Starting, Reason: "no member"}, resync.Status{Text: "starting: no member"}},
		"copying": {
			Snapshot{State: InitialSync, Copy: &Copy{Copy: checkpoint.Copy{Phase: checkpoint.Copying}}},
			resync.Status{Text: "initial-sync, copying"},
		},
		"steady": {
			Snapshot{State: Steady, Progress: checkpoint.Progress{Applied: at}, Copy: &Copy{Copy: checkpoint.Copy{Phase: checkpoint.Copied}}},
			resync.Status{Text: "steady, done", Consistent: true, Steady: true, Applied: at},
		},
		"kept back": {
			Snapshot{State: CatchingUp, Applier: applier.Stats{KeptBack: []applier.KeptBack{{}}}},
			resync.Status{Text: "catching-up", KeptBack: true},
		},
	} {
		if got := tt.s.OfPart(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestNewestCut: the obstacle to the next cut is the reason why none is made, otherwise what the applier waits for.
func TestNewestCut(t *testing.T) {
	t.Parallel()
	s := Snapshot{State: Steady, Applier: applier.Stats{WaitsFor: "an index build"}}
	if cut, why := s.NewestCut(); cut != (checkpoint.Cut{}) || why != "the applier waits for an index build" {
		t.Errorf("%+v, %q", cut, why)
	}
	s.Cut, s.Applier.NoCut = &checkpoint.Cut{Source: oplog.OpTime{Term: 7}}, "lanes are apart"
	if cut, why := s.NewestCut(); cut != *s.Cut || why != "lanes are apart" {
		t.Errorf("%+v, %q", cut, why)
	}
}
