package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestNotRaisedLate: a process that stands by is suspended after it has seen that the lease is
// free, or waits before it sends its write again. The write is not sent: its number would end the
// transactions of the process that has acquired the lease meanwhile.
func TestNotRaisedLate(t *testing.T) {
	for name, refused := range map[string]bool{"suspended": false, "refused at first": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(t)
				b := m.process("b")
				slow := &waiting{memory: m, refused: refused, takes: 1100 * time.Millisecond}
				_, _, err := Acquire(b.ctx, Config{
					Target: slow, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "a", Holder: "b", Keeper: b.keeper, Claim: Claim{TTL: DefaultTTL},
				}, m.record(), 0)
				must.Fail(t, err, mongo.ErrTooLate)
				if r := m.record(); r.Term != 0 {
					t.Errorf("it was sent: %+v", r)
				}
				must.Succeed(t, b.acquire(Claim{})) // after another look
			})
		})
	}
}

// waiting is a store whose first update waits for a connection, or is refused and then waits.
type waiting struct {
	*memory
	refused bool
	takes   time.Duration
	updates int
}

func (w *waiting) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if must.Get(cmd.Body.IndexErr(0))(w.t).Key() != "update" {
		return w.memory.Call(ctx, cmd)
	}
	w.updates++
	if w.updates == 1 {
		time.Sleep(w.takes)
		if w.refused {
			return nil, errLost
		}
	}
	return w.memory.Call(ctx, cmd)
}

// TestRenewedBeforeSending: a command waits for a primary until the lease would have ended, and
// the lease is renewed meanwhile. The command is sent then. One that has an earlier limit of its
// own is not, and the lease is not said to be over.
func TestRenewedBeforeSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		p := m.process("a")
		must.Succeed(t, p.acquire(Claim{}))
		for own, sent := range map[time.Duration]bool{0: true, time.Hour: true, 2 * time.Second: false} {
			cmd := mongo.Command{DB: "admin", Body: bson.Raw(must.Get(bson.Marshal(bson.D{{Key: "hello", Value: 1}}))(t))}
			if own > 0 {
				cmd.SendBy = time.Now().Add(own)
			}
			waits := &awaiting{memory: m, takes: 10 * time.Second}
			_, err := p.keeper.guard(waits).Call(t.Context(), cmd)
			if sent {
				must.Succeed(t, err)
			} else if must.Fail(t, err, mongo.ErrTooLate); waits.calls != 1 {
				t.Errorf("sent %d times", waits.calls)
			}
			must.Succeed(t, p.keeper.Err())
		}
	})
}

// awaiting is a store whose first command waits for a primary.
type awaiting struct {
	*memory
	takes time.Duration
	calls int
}

func (a *awaiting) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if a.calls++; a.calls == 1 {
		time.Sleep(a.takes)
	}
	return a.memory.Call(ctx, cmd)
}
