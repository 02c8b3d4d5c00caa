package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
)

// silent is a set that does not answer a command of one name, as on a connection that the network has lost: the call
// ends with its context.
type silent struct {
	mongo.Caller
	name string
}

// Call implements mongo.Caller.
func (s *silent) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() != s.name {
		return s.Caller.Call(ctx, cmd)
	}
	s.name = ""
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestSilentSource: a source that does not answer one question is asked again: the error is that of a lost connection, not of the
// limit of the drain.
func TestSilentSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &play{t: t, blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{100}}
		_, err := cutover.Drain(t.Context(), &cutover.DrainConfig{
			Source: &silent{p, "find"}, Cuts: p, Link: "dr", By: "me", Within: 10 * time.Minute, OnWait: func(string) {},
		})
		if servererr.Classify(err) != servererr.Lost || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// once is a set that answers the next command on a collection with an error, once armed.
type once struct {
	mongo.Caller
	name, coll string
	err        error
	armed, met atomic.Bool
}

// Call implements mongo.Caller.
func (o *once) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := cmd.Body.Index(0)
	if coll, _ := first.Value().StringValueOK(); first.Key() == o.name && coll == o.coll && o.armed.CompareAndSwap(true, false) {
		o.met.Store(true)
		return nil, o.err
	}
	return o.Caller.Call(ctx, cmd)
}

// TestTriedForLong: a call that has been tried for as long as one is, without success, does not end a cutover whose writes are stopped.
func TestTriedForLong(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	stuck := &mongo.StuckError{Tried: 3 * time.Minute, Tries: 1, Err: &mongo.SilentError{After: 3 * time.Minute}}
	for i, fault := range []struct{ name, coll string }{
		{"find", "user_writes_critical_sections"}, {"find", "oplog.rs"}, {"update", "cutovers"}, {"find", "links"},
	} {
		m := newMoved(t, target, fmt.Sprintf("dr%d", i))
		on := [2]*once{{Caller: target, name: fault.name, coll: fault.coll, err: stuck}, {Caller: m.source, name: fault.name, coll: fault.coll, err: stuck}}
		cfg := m.config(on[0], on[1])
		cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) { // writes are stopped
			for _, o := range on {
				o.armed.Store(!on[0].met.Load() && !on[1].met.Load())
			}
			return "equal", nil
		}
		if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil || !on[0].met.Load() && !on[1].met.Load() {
			t.Errorf("%s of %s: %v", fault.name, fault.coll, err)
			continue
		}
		m.isDone(m.link)
	}
}

// TestTriedForLongWhenReadAgain: nor does a call that reads the record again end it, after an error or once the lock was lost.
func TestTriedForLongWhenReadAgain(t *testing.T) {
	t.Parallel()
	stuck := &mongo.StuckError{Tried: 3 * time.Minute, Tries: 1, Err: &mongo.SilentError{After: 3 * time.Minute}}
	target := open(t, "7.0")
	read := &once{Caller: target, name: "find", coll: "cutovers", err: stuck}
	write := &once{Caller: read, name: "update", coll: "cutovers", err: stuck}
	m := newMoved(t, target, "error")
	cfg := m.config(write, m.source)
	cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) {
		if !write.met.Load() {
			read.armed.Store(true)
			write.armed.Store(true)
		}
		return "equal", nil
	}
	if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil || !read.met.Load() {
		t.Fatalf("after an error, met %t: %v", read.met.Load(), err)
	}
	m.isDone(m.link)

	m = newMoved(t, target, "lock")
	read = &once{Caller: target, name: "find", coll: "cutovers", err: stuck}
	cfg = m.config(read, m.source)
	held, lose := context.WithCancelCause(t.Context())
	cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) {
		lose(locks.ErrExpired)
		return "equal", nil
	}
	if _, err := cutover.Run(held, cfg, byBlock); err == nil {
		t.Fatal("it has lost the lock")
	}
	read.armed.Store(true)
	if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil || !read.met.Load() {
		t.Fatalf("with the lock again, met %t: %v", read.met.Load(), err)
	}
	m.isDone(m.link)
}

// unread is a set whose records of cutovers cannot be read, once armed.
type unread struct {
	*once
	left atomic.Bool
}

// Call implements mongo.Caller.
func (u *unread) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if u.left.Load() {
		u.armed.Store(true)
	}
	return u.once.Call(ctx, cmd)
}

// TestUnreadForLong: a cutover whose record cannot be read any more ends, and says so, once a step has failed for as long as that may take.
func TestUnreadForLong(t *testing.T) {
	t.Parallel()
	stuck := &mongo.StuckError{Tried: 3 * time.Minute, Tries: 1, Err: &mongo.SilentError{After: 3 * time.Minute}}
	target := open(t, "7.0")
	read := &unread{once: &once{Caller: target, name: "find", coll: "cutovers", err: stuck}}
	write := &once{Caller: read, name: "update", coll: "cutovers", err: stuck}
	m := newMoved(t, target, "dr")
	cfg := m.config(write, m.source)
	cfg.Drain.Within = 2 * time.Second
	cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) {
		read.left.Store(true)
		write.armed.Store(true)
		return "equal", nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := cutover.Run(ctx, cfg, byBlock); !errors.As(err, new(*mongo.StuckError)) || ctx.Err() != nil || !read.met.Load() {
		t.Errorf("got %v, in the end %v", err, ctx.Err())
	}
}

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
