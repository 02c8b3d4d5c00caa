package applier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// ring is a capped collection of a source whose log has the deletes of its trimming. Its
// _ids recur.
type ring struct {
	ns   string
	max  int
	docs []bson.D
	next int
}

func idOf(d bson.D) int { return d[0].Value.(int) }

func (r *ring) at(id int) int {
	return slices.IndexFunc(r.docs, func(d bson.D) bool { return idOf(d) == id })
}

// write appends one write to the log, and the deletes that it causes.
func (r *ring) write(l *sourceLog, rng *rand.Rand, deletes bool) {
	ids := r.max + 1 + rng.IntN(3)
	switch n := rng.IntN(10); {
	case n == 0 && deletes && len(r.docs) > 0:
		i := rng.IntN(len(r.docs))
		l.add(deleteOp(r.ns, idOf(r.docs[i])))
		r.docs = slices.Delete(r.docs, i, i+1)
	case n == 1 && len(r.docs) > 0:
		d, v := r.docs[rng.IntN(len(r.docs))], rng.IntN(3)
		l.add(setOp(r.ns, d[0].Value, v))
		d[1].Value = v
	default:
		r.next = (r.next + 1 + rng.IntN(2)) % ids
		for r.at(r.next) >= 0 {
			r.next = (r.next + 1) % (ids + r.max)
		}
		d := doc(r.next, rng.IntN(2)) // often equal to the earlier document
		l.add(insertOp(r.ns, slices.Clone(d)))
		r.docs = append(r.docs, d)
		for len(r.docs) > r.max {
			l.add(deleteOp(r.ns, idOf(r.docs[0])))
			r.docs = r.docs[1:]
		}
	}
}

// TestCappedRandom: the _ids of capped collections recur, and attempts repeatedly end at
// any command, executed or not. A copy lacks at first the documents that were deleted
// before they were read; where clients cannot delete, those are the oldest.
func TestCappedRandom(t *testing.T) {
	t.Parallel()
	seeds := 100
	if testing.Short() || race.Enabled {
		seeds = 20
	}
	for _, dialect := range []string{"5.0", "7.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: dialect})}
			for seed := range seeds {
				cappedCourse(t, target, dialect, seed)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func cappedCourse(t *testing.T, target *simTarget, dialect string, seed int) {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	r := rigOn(t, target, fmt.Sprintf("link%d", seed), 1+rng.IntN(3))
	r.db = fmt.Sprintf("db%d", seed)
	deletes, copied := dialect != "5.0", rng.IntN(2) == 0
	l := newLog(t)
	var rings []*ring
	for i := range 1 + rng.IntN(2) {
		c := &ring{ns: fmt.Sprintf("%s.c%d", r.db, i), max: 1 + rng.IntN(6)}
		if rng.IntN(4) == 0 {
			c.max += 20
		}
		rings = append(rings, c)
		target.run(t, r.db, bson.D{{Key: "create", Value: fmt.Sprintf("c%d", i)}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: c.max}})
		for range rng.IntN(2 * c.max) {
			c.write(newLog(t), rng, deletes)
		}
		var there bson.A
		from := rng.IntN(len(c.docs) + 1)
		for j, d := range c.docs {
			if copied && (deletes && rng.IntN(3) == 0 || !deletes && j < from) {
				continue // the log will delete it
			}
			there = append(there, d)
		}
		if len(there) > 0 {
			target.run(t, r.db, bson.D{{Key: "insert", Value: fmt.Sprintf("c%d", i)}, {Key: "documents", Value: there}})
		}
	}
	for range 10 + rng.IntN(60) {
		rings[rng.IntN(len(rings))].write(l, rng, deletes)
		if rng.IntN(8) == 0 {
			l.end()
		}
	}
	if copied { // a copy that lacks something needs the log that deletes it
		for _, c := range rings {
			for range 4 * c.max {
				c.write(l, rng, false)
			}
		}
	}
	if !runCut(t, r, l, rng, copied) {
		return
	}
	for _, c := range rings {
		var want []bson.Raw
		for _, d := range c.docs {
			want = append(want, must.Marshal(t, d))
		}
		if diff := cmp.Diff(texts(want), texts(target.documents(t, oplog.Namespace(c.ns)))); diff != "" {
			t.Errorf("%s of %d documents, copied %t (-want +got):\n%s", c.ns, c.max, copied, diff)
		}
	}
	if t.Failed() {
		for i, e := range l.entries {
			t.Logf("%d: %s", i, e.raw)
		}
	}
}

// runCut applies a log in attempts that are interrupted, and a last one that is not.
func runCut(t *testing.T, r *rig, l *sourceLog, rng *rand.Rand, copied bool) bool {
	t.Helper()
	cuts := rng.IntN(6)
	for n := 0; ; n++ {
		a := must.Get(r.begin(t.Context(), func(c *Config) {
			c.FlushDocs = 1 + rng.IntN(12)
			if copied {
				c.CopiedUntil = l.optime()
			}
		}))(t)
		if n < cuts {
			cutAt(r.target, 1+rng.IntN(40), rng.IntN(2) == 0)
		}
		state := a.link.State()
		err := a.run(t.Context(), l.after(state.Applied), rng.IntN(3))
		r.target.intercept(nil)
		if err == nil {
			return true
		}
		if _, lost := errors.AsType[*mongo.LostError](err); !lost || n >= cuts {
			t.Errorf("attempt %d: %v", n, err)
			return false
		}
	}
}

// cutAt makes the nth command fail, executed or not, and all that follow.
func cutAt(target *simTarget, n int, sent bool) {
	var commands atomic.Int64
	target.intercept(func(mongo.Command) (error, bool) {
		at := int(commands.Add(1))
		if at < n {
			return nil, false
		}
		return &mongo.LostError{Host: "x", Err: errors.New("gone")}, sent && at == n
	})
}
