package applier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/update"
)

// dollarSource is a source from 5.0 on, of whose documents some have names with a dollar.
type dollarSource struct {
	*sourceLog
	t    *testing.T
	rnd  *rand.Rand
	docs map[int]bson.Raw
	v    int
}

// value draws a value, at times with a name with a dollar.
func (s *dollarSource) value() any {
	s.v++
	switch s.rnd.IntN(5) {
	case 0:
		return bson.D{{Key: "$gt", Value: s.v}}
	case 1:
		return bson.D{{Key: "x", Value: bson.A{bson.D{{Key: "$in", Value: bson.A{s.v}}}}}}
	case 2:
		return bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: s.v}}
	default:
		return s.v
	}
}

func (s *dollarSource) whole(id int) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "u", Value: s.v + 1}, {Key: "q", Value: s.value()}, {Key: "l", Value: bson.A{1, 2, 3, 4, 5, 6}}}
}

// op draws an operation that can follow, and executes it.
func (s *dollarSource) op(grouped bool) bson.D {
	id := s.rnd.IntN(8)
	have, there := s.docs[id]
	if !there || grouped && s.rnd.IntN(3) == 0 {
		d := s.whole(id)
		s.docs[id] = must.Marshal(s.t, d)
		return insertOp("db.c", d)
	}
	var op bson.D
	switch n := s.rnd.IntN(8); n {
	case 0:
		delete(s.docs, id)
		return deleteOp("db.c", id)
	case 1:
		op = replaceOp("db.c", s.whole(id))
	case 2:
		l, _ := have.Lookup("l").Array().Values()
		op = deltaOp("db.c", id, bson.D{{Key: "sl", Value: bson.D{{Key: "a", Value: true}, {Key: "l", Value: max(1, len(l)-1)}}}})
	case 3:
		op = deltaOp("db.c", id, bson.D{{Key: "i", Value: bson.D{{Key: fmt.Sprintf("a.%d", s.rnd.IntN(3)), Value: s.value()}}}})
	case 4:
		op = deltaOp("db.c", id, bson.D{{Key: "i", Value: bson.D{{Key: "q", Value: s.value()}}}})
	default:
		op = deltaOp("db.c", id, bson.D{{Key: "u", Value: bson.D{{Key: "q", Value: s.value()}}}})
	}
	s.docs[id] = must.Get(update.Apply(have, must.Marshal(s.t, op[2].Value)))(s.t)
	return op
}

func (s *dollarSource) entry() {
	var ops []bson.D
	switch s.rnd.IntN(6) {
	case 0:
		for range 1 + s.rnd.IntN(12) {
			ops = append(ops, s.op(false))
		}
		s.add(s.transactionOp(ops...))
	case 1:
		for range 1 + s.rnd.IntN(4) {
			ops = append(ops, s.op(true))
		}
		s.add(groupOp(ops...))
	case 2:
		s.end()
	default:
		s.add(s.op(false))
	}
}

func (s *dollarSource) sorted() (out []string) {
	for _, id := range slices.Sorted(maps.Keys(s.docs)) {
		out = append(out, s.docs[id].String())
	}
	slices.Sort(out)
	return out
}

// TestDollarsRandom: a target before 5.0 gets all documents with names with a dollar, from the log or from a later copy, over conflicts and
// ends of the process.
func TestDollarsRandom(t *testing.T) {
	t.Parallel()
	const seeds = 60
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: "4.4"})}
	opt := must.Get(plan.Ask(t.Context(), target, "db"))(t)
	for seed := range uint64(seeds) {
		dollarsOnce(t, target, opt, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func dollarsOnce(t *testing.T, target *simTarget, opt plan.Options, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 5))
	target.run(t, "db", bson.D{{Key: "dropDatabase", Value: 1}})
	target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
	if rnd.IntN(3) == 0 {
		target.run(t, "db", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}},
		}}})
	}
	s := &dollarSource{sourceLog: newLog(t), t: t, rnd: rnd, docs: map[int]bson.Raw{}}
	copied, n := rnd.IntN(2) == 0, 1+rnd.IntN(60)
	var have map[int]bson.Raw
	at := rnd.IntN(n)
	for i := range n {
		if i == at && copied {
			have = maps.Clone(s.docs)
		}
		s.entry()
	}
	s.add(bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
	for _, doc := range have {
		target.run(t, "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc}}})
	}
	r := rigOn(t, target, fmt.Sprint("link", seed), 1+rnd.IntN(3))
	coalesce := rnd.IntN(2) == 0
	set := func(c *Config) {
		c.Plan = opt
		c.Plan.Coalesce = coalesce
		c.FlushDocs = 5
		if copied {
			c.CopiedUntil = s.optime()
		}
	}
	after, conflicts := int64(1+rnd.IntN(120)), rnd.IntN(2) == 0
	a := must.Get(r.begin(t.Context(), set))(t)
	seen, err := interrupted(t, a, target, s.batches(), after, conflicts)
	if !seen {
		must.Succeed(t, err)
	} else {
		r.apply(t, s.batches(), set)
	}
	got := texts(target.documents(t, "db.c"))
	slices.Sort(got)
	if want := s.sorted(); !slices.Equal(got, want) {
		t.Errorf("copied %t: %d documents:\n%s\nwant %d:\n%s", copied, len(got), got, len(want), want)
	}
}

// interrupted runs an attempt that ends at a command of a transaction. It reports whether there were so many. With conflicts, some others
// meet one.
func interrupted(t *testing.T, a *attempt, target *simTarget, batches []batch.Batch, after int64, conflicts bool) (bool, error) {
	crash := errors.New("the process ends")
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	var seen atomic.Int64
	target.intercept(func(cmd mongo.Command) (error, bool) {
		if cmd.Body.Lookup("autocommit").Type == 0 {
			return nil, false
		}
		switch n := seen.Add(1); {
		case n >= after:
			end(crash)
			return &mongo.LostError{Err: crash}, true
		case conflicts && n%31 == 3 && cmd.DB == "db":
			e := servererr.New(servererr.WriteConflict, "conflict")
			e.Labels = []string{"TransientTransactionError"}
			return e, true
		}
		return nil, false
	})
	err := a.run(ctx, batches, 1)
	target.intercept(nil)
	return seen.Load() >= after, err
}
