package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestTimeLeft: the time that is left is counted from when the last successful renewal was sent,
// whatever hangs since, and is never that of a lease that is over.
func TestTimeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		wants := func(what string, want time.Duration) {
			t.Helper()
			if got := a.keeper.Stats().Left; got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		wants("without a lease", 0)
		must.Succeed(t, a.acquire(Claim{}))
		wants("acquired", 8*time.Second)
		time.Sleep(5 * time.Second) // the last renewal was sent after 4 s
		wants("renewed", 7*time.Second)
		m.fail(hang)
		time.Sleep(6 * time.Second)
		wants("renewals hang", time.Second)
		time.Sleep(time.Second)
		wants("over", 0)
		a.keeper.mu.Lock()
		a.keeper.stop()
		a.keeper.lost = nil // as of a timer that is late
		a.keeper.mu.Unlock()
		time.Sleep(time.Second)
		wants("over, and not noticed yet", 0)
		time.Sleep(10 * time.Second)
		m.fail(nil)
		must.Succeed(t, b.standBy(time.Second))
		wants("another process has it", 0)
	})
}

// TestCounts: takeovers are those from other processes; renewals that another process has made
// vain are failures.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		lost := true
		m.fail(func(_ context.Context, name string) (bool, error) {
			if name == "update" && lost {
				lost = false
				return true, errors.New("the reply is lost, and it is not tried again")
			}
			return true, nil
		})
		if err := a.acquire(Claim{}); err == nil {
			t.Fatal("its grant is not known")
		}
		must.Succeed(t, a.acquire(Claim{}))
		must.Succeed(t, a.acquire(Claim{}))
		lost = true
		if err := b.acquire(Claim{TakeOver: true}); err == nil {
			t.Fatal("its grant is not known")
		}
		must.Succeed(t, b.acquire(Claim{}))
		time.Sleep(5 * time.Second)
		if s := a.keeper.Stats(); s.Takeovers != 0 || s.Renewals != 0 || s.Failures != 1 || s.Left != 0 {
			t.Errorf("a: %+v", s)
		}
		if s := b.keeper.Stats(); s.Takeovers != 1 || s.Renewals != 2 || s.Failures != 0 || s.Left != 7*time.Second {
			t.Errorf("b: %+v", s)
		}
	})
}

// TestFencedWrites: a write counts that was sent and refused, not one that was not sent, nor a
// look at the term.
func TestFencedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		must.Succeed(t, a.acquire(Claim{}))
		must.Succeed(t, b.acquire(Claim{TakeOver: true}))
		look := a.lease.Check(t.Context())
		must.Fail(t, look, ErrFenced)
		time.Sleep(5 * time.Second)
		_, unsent := a.lease.Own().Write(t.Context(), mongo.Command{DB: "db", Body: m.doc()})
		must.Fail(t, unsent, ErrFenced)
		for i, tt := range []struct {
			err  error
			want int64
		}{
			{look, 0},
			{unsent, 0},
			{context.Cause(a.ctx), 0},
			{Judge(&servererr.Error{Code: servererr.TransactionTooOld}), 1},
			{fmt.Errorf("move it: %w", a.lease.Compare("lane l/3", 2)), 1},
		} {
			before := a.keeper.Stats().Fenced
			if a.keeper.CountFenced(tt.err); a.keeper.Stats().Fenced-before != tt.want {
				t.Errorf("%d: %v counts %d", i, tt.err, a.keeper.Stats().Fenced-before)
			}
		}
	})
}
