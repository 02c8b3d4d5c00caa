package sqlstore_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/locks/sqlstore"
)

// TestContenders: 20 contenders for 1,000 locks; with LOCKS_SECONDS for so long.
func TestContenders(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		c := lockstest.Contention{Keys: 1000, Contenders: 20, Workers: 4, Elect: locks.ElectConfig{Store: s.store(t), Every: 500 * time.Millisecond}}
		if text := os.Getenv("LOCKS_SECONDS"); text != "" {
			c.For = time.Duration(must.Get(strconv.Atoi(text))(t)) * time.Second
		}
		began := time.Now()
		t.Logf("%d locks were taken in %s", c.Run(t), time.Since(began))
	})
}

// impatient gives some calls so little time that they are executed, or not, or late.
type impatient struct{ *sqlstore.Store }

func (i impatient) hurry(ctx context.Context) (context.Context, context.CancelFunc) {
	if rand.N(10) > 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, rand.N(3*time.Millisecond))
}

func (i impatient) Acquire(ctx context.Context, c locks.Claim) (locks.Record, error) {
	ctx, cancel := i.hurry(ctx)
	defer cancel()
	return i.Store.Acquire(ctx, c)
}

func (i impatient) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	ctx, cancel := i.hurry(ctx)
	defer cancel()
	return i.Store.Renew(ctx, name, id)
}

func (i impatient) Release(ctx context.Context, name string, id bson.ObjectID) error {
	ctx, cancel := i.hurry(ctx)
	defer cancel()
	return i.Store.Release(ctx, name, id)
}

// TestRestart: a server that is killed while 20 contend, and lose replies, has all that it granted, and
// another election.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if os.Getenv(k.env) != "" {
				t.Skipf("%s names a server that it may not kill", k.env)
			}
			s := k.start(t)
			t.Cleanup(s.end)
			s.db = s.connect(t)
			t.Cleanup(func() { _ = s.db.Close() })
			store := s.store(t)
			slow := locks.Claim{Name: "slow", Process: "p", ID: bson.NewObjectID(), Why: "lasts"}
			was := must.Get(store.Acquire(t.Context(), slow))(t)
			must.Succeed(t, store.Ping(t.Context(), "p"))
			pinged, before := must.Get(store.Pinged(t.Context(), "p"))(t), must.Get(store.Clock(t.Context()))(t)
			c := lockstest.Contention{
				Keys: 200, Contenders: 20, Workers: 2,
				Elect: locks.ElectConfig{Store: impatient{store}, TTL: 5 * time.Second, Every: 500 * time.Millisecond},
				Halfway: func() {
					s.kill()
					s.run(t)
				},
			}
			t.Logf("%d locks were taken", c.Run(t))
			if now := must.Get(store.Clock(t.Context()))(t); now.Election == before.Election || now.Time.Before(before.Time) {
				t.Errorf("before: %+v, now: %+v", before, now)
			}
			if at := must.Get(store.Pinged(t.Context(), "p"))(t); !at.Equal(pinged) {
				t.Errorf("the ping of %s is of %s now", pinged, at)
			}
			if list := must.Get(store.List(t.Context(), "p"))(t); len(list) != 1 || list[0] != was {
				t.Errorf("%+v, was %+v", list, was)
			}
		})
	}
}
