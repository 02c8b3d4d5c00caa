package sqlstore_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/locks/sqlstore"
)

func TestMain(m *testing.M) {
	if err := mysql.SetLogger(&mysql.NopLogger{}); err != nil { // what it logs it also returns
		panic(err)
	}
	goleak.VerifyTestMain(ending{m})
}

// ending ends the servers after the tests.
type ending struct{ m *testing.M }

// Run implements goleak.TestingM.
func (e ending) Run() int {
	code := e.m.Run()
	for _, end := range slices.Backward(all.ends) {
		end()
	}
	all.running.Wait()
	return code
}

func TestConformance(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		lockstest.Run(t, 4*time.Second, func(t *testing.T) locks.Store { return s.store(t) })
	})
}

// TestLateRenewal: as the server's clock cannot be set, the statements have another one.
func TestLateRenewal(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		store := s.store(t)
		lockstest.LateRenewal(t, store, store.Skew)
	})
}

// TestTables: two stores in a database are independent, and Create keeps existing rows.
func TestTables(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		one, cfg := s.tables(t)
		other := s.store(t)
		c := locks.Claim{Name: "a", Process: "p", ID: bson.NewObjectID(), TTL: time.Hour}
		must.Get(one.Acquire(t.Context(), c))(t)
		if list := must.Get(other.List(t.Context(), ""))(t); len(list) != 0 {
			t.Errorf("the other one has %+v", list)
		}
		must.Succeed(t, one.Create(t.Context()))
		again := must.Get(s.open(s.db, cfg))(t)
		if list := must.Get(again.List(t.Context(), ""))(t); len(list) != 1 || list[0].ID != c.ID {
			t.Errorf("after another Create: %+v", list)
		}
	})
}

// TestNames: names that are alike in SQL are different locks.
func TestNames(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		store := s.store(t)
		for _, name := range []string{"a", "A", "a ", "ä", "a\u0308", "\u00e4 ", ""} {
			c := locks.Claim{Name: name, Process: "p", ID: bson.NewObjectID()}
			if r := must.Get(store.Acquire(t.Context(), c))(t); r.ID != c.ID || r.Term != 1 || r.Name != name {
				t.Errorf("%q: %+v", name, r)
			}
		}
		long := strings.Repeat("x", 1001)
		for _, c := range []locks.Claim{{Name: long}, {Process: long}, {Who: long}, {Why: strings.Repeat("y", 8001)}} {
			c.ID = bson.NewObjectID()
			if r, err := store.Acquire(t.Context(), c); err == nil || errors.Is(err, locks.ErrUnavailable) {
				t.Errorf("%v, %+v", err, r)
			}
		}
		fits := locks.Claim{Name: long[1:], Process: long[1:], Who: long[1:], Why: strings.Repeat("y", 8000), ID: bson.NewObjectID()}
		if r := must.Get(store.Acquire(t.Context(), fits))(t); r.Name != fits.Name || r.Why != fits.Why {
			t.Errorf("%+v", r)
		}
	})
}

// TestSession: neither the time zone of a session nor its isolation makes a difference.
func TestSession(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		store, cfg := s.tables(t)
		for _, setting := range s.odd {
			t.Run(setting[0], func(t *testing.T) {
				db := s.connect(t, setting)
				defer db.Close() //nolint:errcheck // nothing was begun
				odd := must.Get(s.open(db, cfg))(t)
				before := must.Get(store.Clock(t.Context()))(t)
				c := locks.Claim{Name: setting[0], Process: "p", ID: bson.NewObjectID(), TTL: time.Hour}
				r := must.Get(odd.Acquire(t.Context(), c))(t)
				now, after := must.Get(odd.Clock(t.Context()))(t), must.Get(store.Clock(t.Context()))(t)
				if r.ID != c.ID || r.When.Before(before.Time) || now.Time.Before(r.When) || after.Time.Before(now.Time) || now.Election != before.Election {
					t.Errorf("from %+v to %+v: %+v, then %+v", before, after, r, now)
				}
				if d := time.Since(now.Time).Abs(); d > time.Minute {
					t.Errorf("its clock is %s off", d)
				}
				renewed := must.Get(odd.Renew(t.Context(), c.Name, c.ID))(t)
				if again := must.Get(odd.Renew(t.Context(), c.Name, c.ID))(t); again.Renewals != renewed.Renewals+1 {
					t.Errorf("%+v, then %+v", renewed, again)
				}
				must.Succeed(t, odd.Release(t.Context(), c.Name, c.ID))
				if _, err := odd.Renew(t.Context(), c.Name, c.ID); !errors.Is(err, locks.ErrLost) {
					t.Errorf("renewed what is released: %v", err)
				}
			})
		}
	})
}

// TestIsolation: at any isolation level one of many gets the lock, in each term.
func TestIsolation(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		for _, level := range []string{"READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
			t.Run(level, func(t *testing.T) {
				_, cfg := s.tables(t)
				var stores []*sqlstore.Store
				for range 8 {
					db := s.connect(t)
					defer db.Close() //nolint:errcheck // nothing was begun
					db.SetMaxOpenConns(1)
					must.Get(db.ExecContext(t.Context(), s.isolation+level))(t)
					stores = append(stores, must.Get(s.open(db, cfg))(t))
				}
				for term := range int64(20) {
					id := oneOf(t, stores, term+1)
					must.Succeed(t, stores[0].Release(t.Context(), "a", id))
				}
			})
		}
	})
}

// oneOf makes all stores contend for a lock, and returns the ID of the acquisition of which all are told.
func oneOf(t *testing.T, stores []*sqlstore.Store, term int64) (id bson.ObjectID) {
	t.Helper()
	got, sent := make([]locks.Record, len(stores)), map[bson.ObjectID]bool{}
	var all sync.WaitGroup
	for i, store := range stores {
		c := locks.Claim{Name: "a", Process: "p", ID: bson.NewObjectID()}
		sent[c.ID] = true
		all.Go(func() {
			err := locks.ErrUnavailable
			for errors.Is(err, locks.ErrUnavailable) {
				got[i], err = store.Acquire(t.Context(), c)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, r := range got {
		if r.ID != got[0].ID || !r.IsLocked() || r.Term != term || !sent[r.ID] {
			t.Fatalf("in term %d: %+v and %+v", term, got[0], r)
		}
	}
	return got[0].ID
}

// TestWaits: statements that wait for a row go by the clock of after the wait where the server has it, and
// do not make a lock end earlier.
func TestWaits(t *testing.T) {
	eachKind(t, func(t *testing.T, s *server) {
		store, cfg := s.tables(t)
		c := locks.Claim{Name: "a", Process: "p", ID: bson.NewObjectID(), TTL: time.Hour}
		must.Get(store.Acquire(t.Context(), c))(t)
		var renewed, taken locks.Record
		was, released := s.blocked(t, store, cfg, func() { renewed = must.Get(store.Renew(t.Context(), "a", c.ID))(t) })
		if renewed.Expires.Before(was.Expires) || s.late && renewed.Modified.Before(released) {
			t.Errorf("from %+v to %+v, unblocked at %s", was, renewed, released)
		}
		must.Succeed(t, store.Release(t.Context(), "a", c.ID))
		next := locks.Claim{Name: "a", Process: "q", ID: bson.NewObjectID(), TTL: time.Hour}
		_, released = s.blocked(t, store, cfg, func() { taken = must.Get(store.Acquire(t.Context(), next))(t) })
		if taken.ID != next.ID || taken.Term != 2 || s.late && taken.When.Before(released) {
			t.Errorf("%+v, unblocked at %s", taken, released)
		}
	})
}

// blocked executes a call that waits for the row of the lock "a", which another connection has. It returns
// the record of before, and a time of after the call has begun to wait.
func (s *server) blocked(t *testing.T, store *sqlstore.Store, cfg sqlstore.Config, call func()) (was locks.Record, at time.Time) {
	t.Helper()
	other := must.Get(s.db.Conn(t.Context()))(t)
	defer other.Close() //nolint:errcheck // it goes back to the pool
	var pid int64
	must.Succeed(t, other.QueryRowContext(t.Context(), s.pid).Scan(&pid))
	tx := must.Get(other.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback() //nolint:errcheck // it was committed
	must.Get(tx.ExecContext(t.Context(), "SELECT term FROM "+cfg.Locks+" WHERE name = 'a' FOR UPDATE"))(t)
	was = must.Get(store.List(t.Context(), ""))(t)[0]
	var calling sync.WaitGroup
	calling.Go(call)
	for n := 0; n == 0; {
		<-time.After(120 * time.Millisecond) // MariaDB makes the table anew 100 ms after it was read last
		must.Succeed(t, s.db.QueryRowContext(t.Context(), s.waiting, pid).Scan(&n))
	}
	now := must.Get(store.Clock(t.Context()))(t)
	for now.Time.Before(was.Modified.Add(20 * time.Millisecond)) {
		now = must.Get(store.Clock(t.Context()))(t)
	}
	must.Succeed(t, tx.Commit())
	calling.Wait()
	return was, now.Time
}
