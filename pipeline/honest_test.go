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
	"github.com/oplogrep/replicator/oplog"
)

// entry is an entry of some second, and its wall clock.
func entry(s uint32) (oplog.OpTime, int64) { return oplog.NewOpTime(s, 1, 1), int64(s) * 1000 }

// heard is a link that was told by its source what is committed there.
func heard(committed, applied, durable uint32) *Pipeline {
	p := &Pipeline{}
	p.sourceIs("a:1", nil)
	p.says(committed)
	p.moved(at(applied, durable))
	return p
}

func (p *Pipeline) says(committed uint32) {
	var m fetcher.Metadata
	var wall int64
	m.Committed, wall = entry(committed)
	m.CommittedWall = bson.DateTime(wall)
	p.live.meta, p.live.heard = m, time.Now()
	p.judgeState()
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
	p := heard(10, 10, 9)
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
	p := heard(10, 10, 10)
	p.wants(t, Steady)
	p.says(15)
	p.moved(at(15, 10))
	p.wants(t, Steady)
	p.says(30)
	p.moved(at(30, 10))
	p.wants(t, CatchingUp)
	p.moved(at(30, 30))
	p.wants(t, Steady)
}

// When nothing is taken from the source any more, nobody knows how much there is.
func TestNotSteadyWhenHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := heard(10, 10, 10)
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
