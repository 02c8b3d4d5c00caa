package cutover_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
)

// pass makes a set have no primary until ctx is done, because its lock has ended.
func pass(ctx context.Context, t *testing.T, f *client.Failing) {
	t.Helper()
	f.Away.Store(true)
	<-ctx.Done()
	f.Away.Store(false)
	must.Fail(t, context.Cause(ctx), locks.ErrExpired)
}

func lockOf(target mongo.Caller, link string, said func(string)) cutover.LockConfig {
	return cutover.LockConfig{Target: target, MetaDB: "replicator", Link: link, By: "me", Why: "cutover", Said: said}
}

func locked(t *testing.T, target mongo.Caller, do func(ctx context.Context) error) error {
	t.Helper()
	return cutover.Locked(t.Context(), lockOf(target, "dr", func(string) {}), do)
}

// TestFailoverLongerThanLock: a failover of the target that lasts longer than the lock of the process that works
// on a cutover does not end the cutover. A set whose primary was killed has none for more than ten seconds.
func TestFailoverLongerThanLock(t *testing.T) {
	t.Parallel()
	target := &client.Failing{Caller: open(t, "7.0")}
	m := newMoved(t, target, "dr")
	cfg := m.config(target, m.source)
	held := make(chan context.Context, 2)
	cfg.Armed = func(context.Context) {
		cfg.Armed = nil
		pass(<-held, t, target) //nolint:contextcheck // It waits for the lock's: the lease may end before that.
	}
	var r *record.Record
	must.Succeed(t, locked(t, target, func(ctx context.Context) (err error) {
		held <- ctx
		r, err = cutover.Run(ctx, cfg, byBlock)
		return err
	}))
	if cfg.Armed != nil || r.State != record.Done {
		t.Errorf("the record is %+v", r)
	}
	m.isDone("after a failover")
}

// hanging is a set that accepts commands and does not answer while away is set.
type hanging struct {
	mongo.Caller
	away atomic.Bool
}

func (h *hanging) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if h.away.Load() {
		<-ctx.Done()
		return nil, &mongo.LostError{Err: ctx.Err()}
	}
	return h.Caller.Call(ctx, cmd)
}

// TestTargetAwayForLong: a target that does not answer for longer than the lock of another process would be waited for does
// not end a cutover: writes to the source are stopped already.
func TestTargetAwayForLong(t *testing.T) {
	t.Parallel()
	failing := &client.Failing{Caller: open(t, "7.0")}
	t.Run("no primary", func(t *testing.T) { testAwayForLong(t, failing, &failing.Away) })
	silent := &hanging{Caller: open(t, "7.0")}
	t.Run("no answer", func(t *testing.T) { testAwayForLong(t, silent, &silent.away) })
}

func testAwayForLong(t *testing.T, target mongo.Caller, away *atomic.Bool) {
	t.Parallel()
	m := newMoved(t, target, "dr")
	cfg := m.config(target, m.source)
	cfg.Armed = func(context.Context) {
		cfg.Armed = nil
		away.Store(true)
	}
	waits := 0
	said := func(text string) {
		if strings.HasPrefix(text, "waiting until the target answers") {
			waits++
			away.Store(false)
		}
	}
	must.Succeed(t, cutover.Locked(t.Context(), lockOf(target, "dr", said), func(ctx context.Context) error {
		_, err := cutover.Run(ctx, cfg, byBlock)
		return err
	}))
	if waits != 1 {
		t.Errorf("it has waited %d times", waits)
	}
	m.isDone("the target was away")
}

// tardy is a set that answers once nobody waits for the answer.
type tardy struct{ mongo.Caller }

func (l *tardy) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	<-ctx.Done()
	return l.Caller.Call(context.WithoutCancel(ctx), cmd)
}

// TestLockTooLate: nothing is done with a lock that has come when it was not waited for any more.
func TestLockTooLate(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	n := 0
	err := locked(t, &tardy{target}, func(context.Context) error {
		n++
		return nil
	})
	if !errors.Is(err, locks.ErrExpired) || n != 0 {
		t.Errorf("got %v after %d", err, n)
	}
	if r, is, err := cutover.WorksOn(t.Context(), target, "replicator", "dr"); is || err != nil {
		t.Errorf("left: %v, %v", r, err)
	}
}

// TestLockEndsAfterwards: a call that has succeeded has succeeded, although the lock has ended before that.
func TestLockEndsAfterwards(t *testing.T) {
	t.Parallel()
	target := &client.Failing{Caller: open(t, "7.0")}
	n := 0
	must.Succeed(t, locked(t, target, func(ctx context.Context) error {
		n++
		pass(ctx, t, target)
		return nil
	}))
	if n != 1 {
		t.Errorf("it was done %d times", n)
	}
}

// TestLockTakenMeanwhile: if another process has taken the lock meanwhile, it is that one's.
func TestLockTakenMeanwhile(t *testing.T) {
	t.Parallel()
	inner := open(t, "7.0")
	target := &client.Failing{Caller: inner}
	other := locks.NewElect(locks.ElectConfig{Store: mongostore.New(inner, "replicator"), Who: "another"})
	defer other.Close()
	n := 0
	err := locked(t, target, func(ctx context.Context) error {
		n++
		pass(ctx, t, target)
		has := make(chan struct{})
		target.Away.Store(true) // so that the lock is not released
		go func() {             //nolint:contextcheck // The lock's context has ended.
			defer close(has)
			for got := false; !got && t.Context().Err() == nil; {
				got, _ = other.TryLock(t.Context(), jobs.Link("dr"), "cutover --resume", func(ctx context.Context) { <-ctx.Done() })
				if !got {
					_ = mongo.Pause(t.Context(), 100*time.Millisecond)
				}
			}
			target.Away.Store(false)
		}()
		<-has
		return context.Cause(ctx)
	})
	if busy, is := errors.AsType[*cutover.BusyError](err); !is || busy.Record.Who != "another" || n != 1 {
		t.Errorf("got %v after %d", err, n)
	}
}

// TestLockWithoutTarget: that the target does not answer is not taken for another process with the lock.
func TestLockWithoutTarget(t *testing.T) {
	t.Parallel()
	target := &client.Failing{Caller: open(t, "7.0")}
	target.Away.Store(true)
	err := locked(t, target, func(context.Context) error { return nil })
	if !errors.Is(err, client.ErrNoPrimary) {
		t.Errorf("got %v", err)
	}
}
