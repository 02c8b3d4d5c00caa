package pipeline

import (
	"context"
	"errors"
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

// heard is a link that was told by its source that second 10 is committed there,
// and has applied that.
func heard(durable uint32) *Pipeline {
	p := &Pipeline{}
	p.sourceIs("a:1", nil)
	p.says(10)
	p.moved(at(10, durable))
	return p
}

func (p *Pipeline) says(committed uint32) {
	var m fetcher.Metadata
	var wall int64
	m.Committed, wall = entry(committed)
	m.CommittedWall = bson.DateTime(wall)
	p.hear(m)
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

// A link that no member can be read for is not steady, whatever its stages still
// do with what was read before.
func TestNotSteadyWithoutSource(t *testing.T) {
	p := heard(9)
	p.wants(t, Steady)
	for _, state := range []State{CatchingUp, Stale, Starting} {
		p.sourceIs("", nil)
		p.state.set(state, "nobody to read from")
		p.moved(at(10, 10))
		p.wants(t, state)
	}
}

// A target without a majority takes writes for as long as its primary does not know
// it. Nothing of it counts.
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

// A source in which nothing is written logs a no-op every 10 s. It is not by these
// 10 s that a link is behind when one comes.
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

// A link that is to be behind is steady when it is behind by that much.
func TestSteadyWithDelay(t *testing.T) {
	p := &Pipeline{}
	p.cfg.Delay = time.Hour
	p.sourceIs("a:1", nil)
	p.says(10_000)
	p.moved(at(10_000-3601, 10_000-3601))
	p.wants(t, Steady)
	p.says(20_000)
	p.wants(t, CatchingUp)
}

// When nothing is taken from the source any more, nobody knows how much there is.
func TestNotSteadyWhenHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := heard(10)
		p.says(14)
		p.wants(t, Steady)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- (&upstream{p: p}).hand(ctx, make(chan oplog.Reply), oplog.Reply{}) }()
		time.Sleep(time.Minute)
		p.wants(t, CatchingUp)
		end := errors.New("end")
		cancel(end)
		if err := <-done; !errors.Is(err, end) {
			t.Errorf("%v, want the cause", err)
		}
	})
}
