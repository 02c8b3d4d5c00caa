package cutover_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// steppingDown is a source whose primary steps down while it answers reads.
type steppingDown struct {
	mongo.Caller
	times atomic.Int64
}

// Call implements mongo.Caller.
func (s *steppingDown) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == "find" && s.times.Add(-1) >= 0 {
		return nil, servererr.New(servererr.PrimarySteppedDown, "the primary steps down")
	}
	return s.Caller.Call(ctx, cmd)
}

// TestFailoverAfterLongStep: a failover does not end a cutover whose steps before have taken longer than a step may fail;
// a source that does not answer any more does.
func TestFailoverAfterLongStep(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, times := range map[string]int64{"once": 1, "always": never} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoved(t, target, "dr-"+name)
			source := &steppingDown{Caller: m.source}
			cfg := m.config(target, source)
			cfg.Drain.Within = 5 * time.Second
			cfg.Verify = func(ctx context.Context, _ checkpoint.Cut) (string, error) {
				for begun := time.Now(); time.Since(begun) <= cfg.Drain.Within; {
					must.Succeed(t, mongo.Pause(ctx, time.Second))
				}
				source.times.Store(times)
				return "equal", nil
			}
			r, err := cutover.Run(t.Context(), cfg, byBlock)
			if times == 1 {
				must.Succeed(t, err)
				m.isDone(name)
			} else if servererr.Classify(err) != servererr.NotPrimary || r.State != record.Running {
				t.Errorf("got %v, %+v", err, r)
			}
		})
	}
}

// standing is a target at which the write that acquires the link's lease comes too late, as the process stood still after it
// had read the lease: the first times that it is sent.
type standing struct {
	mongo.Caller
	times atomic.Int64
	late  func()
}

// Call implements mongo.Caller.
func (s *standing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if updates, err := cmd.Body.LookupErr("update"); err == nil && updates.StringValue() == metadata.Links && !cmd.SendBy.IsZero() && s.times.Add(-1) >= 0 {
		s.late()
		for !cmd.Overdue() {
			_ = mongo.Pause(ctx, time.Until(cmd.SendBy))
		}
		return nil, mongo.ErrTooLate
	}
	return s.Caller.Call(ctx, cmd)
}

func lateAtLease(c mongo.Caller, times int64, late func()) *standing {
	s := &standing{Caller: c, late: late}
	s.times.Store(times)
	return s
}

// TestStoodStillAtLease: a process that stands still for more than a second between reading the link's lease and taking it
// over takes it over afterwards, unless another one has cancelled the cutover meanwhile.
func TestStoodStillAtLease(t *testing.T) {
	t.Parallel()
	inner := open(t, "7.0")
	m := newMoved(t, inner, "done")
	must.Get(cutover.Run(t.Context(), m.config(lateAtLease(inner, 1, func() {}), m.source), byBlock))(t)
	m.isDone("it stood still")

	m = newMoved(t, inner, "cancelled")
	target := lateAtLease(inner, 1, func() {
		must.Get(cutover.Cancel(t.Context(), m.config(lateAtLease(inner, 1, func() {}), m.source)))(t)
	})
	if _, err := cutover.Run(t.Context(), m.config(target, m.source), byBlock); !errors.Is(err, record.ErrChanged) {
		t.Errorf("cancelled, got %v", err)
	}
	if target.times.Load() != 0 {
		t.Error("it has acquired the lease again of a cutover that is cancelled")
	}
	m.isBack("it stood still")
}
