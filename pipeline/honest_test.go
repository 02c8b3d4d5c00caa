package pipeline

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// entry is an entry of some second, and its wall clock.
func entry(s uint32) (oplog.OpTime, int64) { return oplog.NewOpTime(s, 1, 1), int64(s) * 1000 }

// heard returns a link whose source has reported second 10 as committed, and that has
// applied it.
func heard(durable uint32) *Pipeline {
	p := &Pipeline{}
	p.says(10)
	p.moved(at(10, durable))
	return p
}

func (p *Pipeline) says(committed uint32) {
	st := fetcher.Status{Host: "a:1", Replies: p.live.replies + 1, HeardAt: time.Now()}
	var wall int64
	st.Metadata.Committed, wall = entry(committed)
	st.Metadata.CommittedWall = bson.DateTime(wall)
	p.hear(st)
}

// silent simulates a status without new replies.
func (p *Pipeline) silent(host, why string, stale bool) {
	p.hear(fetcher.Status{Host: host, Replies: p.live.replies, Why: why, Stale: stale})
}

func at(applied, durable uint32) (progress checkpoint.Progress) {
	progress.Applied, progress.AppliedWall = entry(applied)
	progress.Durable, progress.DurableWall = entry(durable)
	return progress
}

func (p *Pipeline) wants(t *testing.T, want State) {
	t.Helper()
	if got, why, _ := p.state.get(); got != want {
		t.Errorf("the state is %s (%s), want %s", got, why, want)
	}
}

// A link without a member to read is not steady, even while its stages process entries
// that were read before.
func TestNotSteadyWithoutSource(t *testing.T) {
	p := heard(9)
	p.wants(t, Steady)
	for _, state := range []State{CatchingUp, Stale, Starting} {
		p.silent("", "", false)
		p.state.set(state, "nobody to read from")
		p.moved(at(10, 10))
		p.wants(t, state)
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
		p := heard(10)
		p.state.set(tt.from, "before")
		p.live.resting = tt.resting
		p.silent("", "no member", tt.stale)
		p.wants(t, tt.want)
		if _, why, _ := p.state.get(); why != "no member" && tt.from != tt.want {
			t.Errorf("%+v: the reason is %q", tt, why)
		}
		p.live.resting = false
		p.says(10)
		p.wants(t, Steady)
	}
}

// A target without a majority accepts writes until its primary notices. They do not
// count.
func TestNotSteadyWithoutDurability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := heard(10)
		p.wants(t, Steady)
		time.Sleep(5 * time.Second)
		p.says(15)
		p.moved(at(15, 10))
		p.wants(t, Steady)
		time.Sleep(15 * time.Second)
		p.says(30)
		p.moved(at(30, 10))
		p.wants(t, CatchingUp)
		p.moved(at(30, 30))
		p.wants(t, Steady)
	})
}

// An idle source logs a no-op every 10 s. When one arrives, the link does not lag by
// these 10 s.
func TestSteadyWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := heard(10)
		var changes []StateChanged
		p.state.observer = func(e event.Event) { changes = append(changes, e.(StateChanged)) }
		for s := uint32(21); s < 200; s += 11 {
			time.Sleep(11 * time.Second)
			p.says(s)
			if lag := p.live.lag(); lag > time.Second {
				t.Errorf("the lag is %s when a no-op has just come", lag)
			}
			p.moved(at(s, s-11))
			p.moved(at(s, s))
		}
		if len(changes) > 0 {
			t.Errorf("the state changed: %v", changes)
		}
	})
}

// A link with a delay is steady at that lag.
func TestSteadyWithDelay(t *testing.T) {
	p := &Pipeline{}
	p.cfg.Delay = time.Hour
	p.says(10_000)
	p.moved(at(10_000-3601, 10_000-3601))
	p.wants(t, Steady)
	p.says(20_000)
	p.wants(t, CatchingUp)
}

// While no reply is taken from the source, its newest entry is unknown.
func TestNotSteadyWhenHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := heard(10)
		p.says(14)
		p.wants(t, Steady)
		for range 60 { // the fetch stage reports every second that its replies are not taken
			time.Sleep(time.Second)
			p.silent("a:1", "", false)
		}
		p.wants(t, CatchingUp)
	})
}
