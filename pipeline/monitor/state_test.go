package monitor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// entry is an entry of some second, and its wall clock.
func entry(s uint32) (oplog.OpTime, int64) { return oplog.NewOpTime(s, 1, 1), int64(s) * 1000 }

// upTo10 returns a link whose source has reported second 10 as committed, and that has
// applied it.
func upTo10(durable uint32) *Monitor {
	m := New(Config{Waits: &mongo.Waits{}})
	m.says(10)
	m.Moved(at(10, durable))
	return m
}

func (m *Monitor) says(committed uint32) {
	st := fetcher.Status{Host: "a:1", Replies: m.source.Replies + 1, HeardAt: time.Now()}
	var wall int64
	st.Metadata.Committed, wall = entry(committed)
	st.Metadata.CommittedWall = bson.DateTime(wall)
	m.heard(st)
}

// silent simulates a status without new replies.
func (m *Monitor) silent(host, why string, stale bool) {
	m.heard(fetcher.Status{Host: host, Replies: m.source.Replies, Why: why, Stale: stale})
}

func at(applied, durable uint32) (progress checkpoint.Progress) {
	progress.Applied, progress.AppliedWall = entry(applied)
	progress.Durable, progress.DurableWall = entry(durable)
	return progress
}

func (m *Monitor) wants(t *testing.T, want State) {
	t.Helper()
	if s := m.Snapshot(); s.State != want {
		t.Errorf("the state is %s (%s), want %s", s.State, s.Reason, want)
	}
}

// A link without a member to read is not steady, even while its stages process entries
// that were read before.
func TestNotSteadyWithoutSource(t *testing.T) {
	m := upTo10(9)
	m.wants(t, Steady)
	for _, state := range []State{CatchingUp, Stale, Starting} {
		m.silent("", "", false)
		m.set(state, "nobody to read from")
		m.Moved(at(10, 10))
		m.wants(t, state)
	}
}

// A link without a member to read is in the corresponding state: a stale one remains
// stale until a member has the position, and a starting one remains starting.
func TestStateWithoutSource(t *testing.T) {
	for _, tt := range []struct {
		from    State
		stale   bool
		resting bool
		want    State
	}{
		{Steady, false, false, CatchingUp},
		{CatchingUp, true, false, Stale},
		{Stale, false, false, Stale},
		{Starting, false, false, Starting},
		{Starting, true, false, Stale},
		{Starting, true, true, Starting},
	} {
		m := upTo10(10)
		m.set(tt.from, "before")
		m.resting = tt.resting
		m.silent("", "no member", tt.stale)
		m.wants(t, tt.want)
		if why := m.Snapshot().Reason; why != "no member" && tt.from != tt.want {
			t.Errorf("%+v: the reason is %q", tt, why)
		}
		m.resting = false
		m.says(10)
		m.wants(t, Steady)
	}
}

// A target without a majority accepts writes until its primary notices. They do not
// count.
func TestNotSteadyWithoutDurability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := upTo10(10)
		m.wants(t, Steady)
		time.Sleep(5 * time.Second)
		m.says(15)
		m.Moved(at(15, 10))
		m.wants(t, Steady)
		time.Sleep(15 * time.Second)
		m.says(30)
		m.Moved(at(30, 10))
		m.wants(t, CatchingUp)
		m.Moved(at(30, 30))
		m.wants(t, Steady)
	})
}

// An idle source logs a no-op every 10 s. When one arrives, the link does not lag by
// these 10 s.
func TestSteadyWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := upTo10(10)
		var changes []StateChanged
		m.cfg.Observer = func(e event.Event) { changes = append(changes, e.(StateChanged)) }
		for s := uint32(21); s < 200; s += 11 {
			time.Sleep(11 * time.Second)
			m.says(s)
			if lag := m.Snapshot().Lag; lag > time.Second {
				t.Errorf("the lag is %s when a no-op has just come", lag)
			}
			m.Moved(at(s, s-11))
			m.Moved(at(s, s))
		}
		if len(changes) > 0 {
			t.Errorf("the state changed: %v", changes)
		}
	})
}

// A link with a delay is steady at that lag.
func TestSteadyWithDelay(t *testing.T) {
	m := New(Config{Delay: time.Hour, Waits: &mongo.Waits{}})
	m.says(10_000)
	m.Moved(at(10_000-3601, 10_000-3601))
	m.wants(t, Steady)
	m.says(20_000)
	m.wants(t, CatchingUp)
}

// While no reply is taken from the source, its newest entry is unknown.
func TestNotSteadyWhenHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := upTo10(10)
		m.says(14)
		m.wants(t, Steady)
		for range 60 { // the fetch stage reports every second that its replies are not taken
			time.Sleep(time.Second)
			m.silent("a:1", "", false)
		}
		m.wants(t, CatchingUp)
	})
}

// The attempt whose commit records a copy as done may end before the reply. The next
// attempt finds it recorded and announces it, once.
func TestConsistentOfUnknownOutcome(t *testing.T) {
	announced := 0
	m := New(Config{Observer: func(e event.Event) {
		if _, ok := e.(Consistent); ok {
			announced++
		}
	}})
	for i, phase := range []checkpoint.CopyPhase{checkpoint.Replaying, checkpoint.Copied, checkpoint.Copied} {
		m.SetGaps(checkpoint.Gaps{Copying: phase != checkpoint.Copied})
		m.Began(Attempt{State: checkpoint.State{Copy: &checkpoint.Copy{Phase: phase}}})
		if want := min(i, 1); announced != want {
			t.Errorf("attempt %d: consistent was announced %d times, want %d", i+1, announced, want)
		}
	}
}

// An attempt that has failed is over: whatever the fetch stage says afterwards, or at the
// same moment, the link is starting again.
func TestStartingAfterFailure(t *testing.T) {
	m := upTo10(10)
	for i := range 2000 {
		m.Began(Attempt{Start: at(10, 10)})
		var busy sync.WaitGroup
		busy.Go(func() { m.says(10) })
		busy.Go(func() { m.Moved(at(10, 10)) })
		m.Failed(errors.New("no primary"))
		busy.Wait()
		if s := m.Snapshot(); s.State != Starting || s.Reason != "trying again: no primary" || s.Attempts != i+1 {
			t.Fatalf("%s (%s) after attempt %d", s.State, s.Reason, s.Attempts)
		}
	}
}

// A link whose attempt has ended in order is not steady until the source answers the next
// one, however long that has to wait for the lease.
func TestNotSteadyBetween(t *testing.T) {
	m := upTo10(10)
	m.wants(t, Steady)
	m.Between()
	m.says(10)
	m.Moved(at(10, 10))
	m.wants(t, Starting)
	m.Began(Attempt{Start: at(10, 10)})
	m.Moved(at(10, 10))
	m.wants(t, Starting)
	m.says(10)
	m.wants(t, Steady)
	m.says(20)
	m.Moved(at(11, 10))
	m.silent("", "no member", false)
	m.Between()
	m.wants(t, CatchingUp)
}

// An attempt is judged by what the source says during it.
func TestNotSteadyByOldReply(t *testing.T) {
	m := upTo10(10)
	m.Failed(errors.New("no primary"))
	m.Began(Attempt{Start: at(10, 10)})
	m.Moved(at(10, 10))
	m.wants(t, Starting)
	if up, ok := m.Upstream(); ok {
		t.Errorf("progress would be reported to %s, which has not answered yet", up.Host)
	}
	m.says(10)
	m.wants(t, Steady)
}

// While a copy is not consistent, the target has reached nothing, and a link that has
// ended stays ended.
func TestConsistentThenEnded(t *testing.T) {
	m := upTo10(10)
	m.SetGaps(checkpoint.Gaps{Copying: true})
	m.Began(Attempt{Start: at(10, 10), State: checkpoint.State{Copy: &checkpoint.Copy{Phase: checkpoint.Replaying}}})
	m.says(10)
	if s := m.Snapshot(); s.State != InitialSync || !s.Progress.Applied.IsNull() || s.Log != at(10, 10) {
		t.Errorf("%s at %s, in the log at %s", s.State, s.Progress.Applied, s.Log.Applied)
	}
	m.Consistent(checkpoint.Copy{Phase: checkpoint.Copied})
	m.says(10)
	if s := m.Snapshot(); s.State != Steady || s.Progress != at(10, 10) || s.Copy.Phase != checkpoint.Copied {
		t.Errorf("%s at %s, its copy is %s", s.State, s.Progress.Applied, s.Copy.Phase)
	}
	m.Ended(Stopped, "drained")
	m.says(10)
	m.Moved(at(10, 10))
	s := m.Snapshot()
	if s.AddReason("a command waits"); s.State != Stopped || s.Reason != "drained" {
		t.Errorf("%s: %s", s.State, s.Reason)
	}
}

// A copy may become consistent before the source has answered the attempt that applies the
// oplog to it: a source that writes nothing lets the first read wait. The link is not in its
// initial sync any more, and not steady yet.
func TestConsistentBeforeTheSourceAnswers(t *testing.T) {
	begin := func(m *Monitor, phase checkpoint.CopyPhase) {
		m.SetGaps(checkpoint.Gaps{Copying: phase != checkpoint.Copied})
		m.Began(Attempt{Start: at(10, 10), State: checkpoint.State{Copy: &checkpoint.Copy{Phase: phase}}})
	}
	for name, becomes := range map[string]func(m *Monitor){
		"in this attempt": func(m *Monitor) { m.Consistent(checkpoint.Copy{Phase: checkpoint.Copied}) },
		"in the one before": func(m *Monitor) {
			m.Between()
			begin(m, checkpoint.Copied)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := upTo10(10)
			begin(m, checkpoint.Replaying)
			m.says(10)
			m.wants(t, InitialSync)
			begin(m, checkpoint.Replaying)
			becomes(m)
			m.wants(t, CatchingUp)
			if s := m.Snapshot(); s.Reason == "" {
				t.Error("the state has no reason")
			}
			m.says(10)
			m.wants(t, Steady)
		})
	}
}

// What keeps the source from being read does not become unknown as the copy becomes consistent.
func TestConsistentWithoutSource(t *testing.T) {
	for want, stale := range map[State]bool{Stale: true, CatchingUp: false} {
		m := upTo10(10)
		m.SetGaps(checkpoint.Gaps{Copying: true})
		m.Began(Attempt{Start: at(10, 10), State: checkpoint.State{Copy: &checkpoint.Copy{Phase: checkpoint.Replaying}}})
		m.says(10)
		m.silent("", "its oplog is gone", stale)
		m.wants(t, InitialSync)
		m.Consistent(checkpoint.Copy{Phase: checkpoint.Copied})
		m.wants(t, want)
		if s := m.Snapshot(); s.Reason != "its oplog is gone" {
			t.Errorf("the reason is %q", s.Reason)
		}
	}
}

// The counts of an attempt stay when the next one begins, and while a copy is made.
func TestCounts(t *testing.T) {
	m := New(Config{Waits: &mongo.Waits{}})
	wants := func(flushes, divergences int64) {
		t.Helper()
		if s := m.Snapshot().Applier; s.Flushes != flushes || s.Divergences != divergences {
			t.Errorf("%+v", s)
		}
	}
	counts := applier.Stats{Flushes: 5, Divergences: 2}
	m.Began(Attempt{Counts: func() applier.Stats { return counts }})
	wants(5, 2)
	counts.Flushes++
	m.Failed(errors.New("no primary")) // the lease may then not be acquired: it is still the same attempt
	m.Failed(errors.New("no primary"))
	wants(6, 2)
	m.Began(Attempt{})
	wants(6, 2)
	m.Began(Attempt{Counts: func() applier.Stats { return applier.Stats{Flushes: 1} }})
	wants(7, 2)
}

// TestSilentSourceIsNoticed: a link whose source is silent is not steady ten seconds later, and is
// as soon as it answers; one that is idle is steady all the time, and so is one whose source may
// wait for longer.
func TestSilentSourceIsNoticed(t *testing.T) {
	for _, await := range []time.Duration{0, 5 * time.Second, 20 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{Waits: &mongo.Waits{}, Await: await})
			ctx, stop := context.WithCancelCause(t.Context())
			var running sync.WaitGroup
			running.Go(func() { m.StandsLoop(ctx) })
			defer running.Wait()
			defer stop(nil)
			m.says(10)
			m.Moved(at(10, 10))
			silentAfter := m.Snapshot().SilentAfter
			for range 20 {
				time.Sleep(silentAfter - 3*time.Second)
				m.wants(t, Steady)
				m.says(10)
			}
			time.Sleep(silentAfter + 1500*time.Millisecond)
			m.wants(t, CatchingUp)
			if s := m.Snapshot(); s.Reason == "" || silentAfter != 8*time.Second && await < 20*time.Second {
				t.Errorf("%q, silent after %s", s.Reason, silentAfter)
			}
			m.says(10)
			m.wants(t, Steady)
		})
	}
}

// TestLagAsOfTheLastReply: time that passes after the source's last reply is not lag.
func TestLagAsOfTheLastReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := upTo10(10)
		m.says(100) // after an idle time
		time.Sleep(time.Second)
		m.says(101)
		time.Sleep(30 * time.Second)
		if lag := m.Snapshot().Lag; lag != time.Second {
			t.Errorf("the lag is %s, and was 1s when the source last answered", lag)
		}
	})
}
