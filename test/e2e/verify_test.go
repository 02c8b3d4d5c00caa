package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify"
)

// Environment variables of TestVerify: the first seed, and how many.
const (
	envVerifySeed  = "VERIFY_SEED"
	envVerifySeeds = "VERIFY_SEEDS"
)

const (
	// verificationsWanted is how many verifications have to end while members are killed and
	// clients write, at least.
	verificationsWanted = 3
	// burstTime is for how long a client writes before it waits for the target, auditLimit what
	// one verification may take.
	burstTime, auditLimit = 100 * time.Millisecond, 5 * time.Minute
	// bigDocs is how many documents the collection has that is read in several ranges.
	bigDocs = 2000
	// plantedDocs is how many documents of it, from the first on, clients leave alone: those are
	// there for certain when a foreign write to them is planted.
	plantedDocs = 10
)

// TestVerify compares a link's target with its source again and again, while clients write, and
// while members of both sets and the mirror itself are killed: nothing differs. Then other
// clients write to the target: that, and nothing else, is found.
func TestVerify(t *testing.T) {
	first := number(t, envVerifySeed, 1)
	for seed := first; seed < first+number(t, envVerifySeeds, 1); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			t.Parallel()
			b := openBank(t, seed)
			(&audit{bank: b}).run(t)
		})
	}
}

// audit is one run of TestVerify.
type audit struct {
	*bank
	// done counts verifications, docs what they have compared.
	done, docs atomic.Int64
}

func (a *audit) run(t *testing.T) {
	a.mirror.begin()
	defer a.mirror.end(errEnd)
	a.mirror.await(a.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
	a.found(t)
	source, target := connect(t, a.source.uriFor(admin)), connect(t, a.target.uriFor(admin))
	a.fill(t, source)
	ctx, stop := context.WithCancelCause(t.Context())
	writing, enough := context.WithCancelCause(ctx)
	var work, watch sync.WaitGroup
	defer func() {
		stop(errEnd)
		work.Wait()
		watch.Wait()
	}()
	a.bursts(writing, &work, source, target,
		func(ctx context.Context, n int) { a.transfers(ctx, ctx, source, n) },
		func(ctx context.Context, n int) { a.churn(ctx, source, n) },
		func(ctx context.Context, n int) { a.churn(ctx, source, n) },
		func(ctx context.Context, n int) { a.define(ctx, source, n) },
	)
	watch.Go(func() {
		for ctx.Err() == nil && a.done.Load() < verificationsWanted {
			a.verified(ctx, t, source, target, true)
		}
		enough(errEnd)
	})
	a.hurt(t, func() (string, error) { return a.injury(t) })
	a.whole(t)
	watch.Wait()
	enough(errEnd)
	work.Wait()
	if found := a.verified(ctx, t, source, target, false); len(found) > 0 {
		t.Errorf("at rest: %d differences", len(found))
	}
	a.plant(t, target)
	got := a.verified(ctx, t, source, target, false)
	want := []string{
		"differs bank.big {\"$numberInt\":\"7\"}", "extra bank.big {\"$numberInt\":\"-9\"}", "extra bank.names \"nobody\"",
		"index bank.big planted", "missing bank.big {\"$numberInt\":\"8\"}",
	}
	if !slices.Equal(got, want) {
		t.Errorf("planted differences:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	t.Logf("%d verifications of %d documents", a.done.Load(), a.docs.Load())
}

// fill makes what a bank does not have: a large collection, one with a collation, a capped one.
func (a *audit) fill(t *testing.T, source mongo.Caller) {
	t.Helper()
	majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
	command(t, source, bankDB, bson.D{{Key: "create", Value: "names"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}, majority})
	command(t, source, bankDB, bson.D{{Key: "create", Value: "log"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 40}, majority})
	for from := 0; from < bigDocs; from += 1000 {
		docs := bson.A{}
		for id := from; id < from+1000; id++ {
			docs = append(docs, bson.D{{Key: "_id", Value: int32(id)}, {Key: "pad", Value: strings.Repeat("x", 100)}})
		}
		command(t, source, bankDB, bson.D{{Key: "insert", Value: "big"}, {Key: "documents", Value: docs}, majority})
	}
	command(t, source, bankDB, bson.D{{Key: "createIndexes", Value: "big"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "ttl"}, {Key: "expireAfterSeconds", Value: 1_000_000}},
		bson.D{{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}, {Key: "sparse", Value: true}},
	}}, majority})
}

// bursts has clients write for a while, then wait until the target has that, and so on: they are
// never far ahead of it, however slow the machine is.
func (a *audit) bursts(ctx context.Context, work *sync.WaitGroup, source, target mongo.Caller, clients ...func(ctx context.Context, n int)) {
	for n, write := range clients {
		work.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				burst, end := context.WithTimeout(ctx, burstTime)
				write(burst, 1000*i+n)
				end()
				a.follows(ctx, source, target, fmt.Sprint(n, i))
			}
		})
	}
}

// follows waits until the target has all writes to the source.
func (a *audit) follows(ctx context.Context, source, target mongo.Caller, mark string) {
	insert := bson.D{
		{Key: "insert", Value: "marks"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: mark}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}
	find := bson.D{{Key: "find", Value: "marks"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: mark}}}}
	for written := false; mongo.Pause(ctx, writePause) == nil; {
		if !written {
			reply, err := source.Call(ctx, bankCommand(insert))
			written = err == nil && mongo.ConcernError(reply) == nil
			continue
		}
		reply, err := target.Call(ctx, bankCommand(find))
		if err != nil {
			continue
		}
		if batch, err := mongo.ReadBatch(reply); err == nil && len(batch.Docs) == 1 {
			return
		}
	}
}

// churn writes to these collections until ctx is done. What fails is forgotten.
func (a *audit) churn(ctx context.Context, source mongo.Caller, n int) {
	rnd := rand.New(rand.NewPCG(a.seed, uint64(100+n)))
	for i := 0; mongo.Pause(ctx, writePause) == nil; i++ {
		id := int32(plantedDocs + 1 + rnd.IntN(bigDocs-plantedDocs-1))
		for _, cmd := range []bson.D{
			update("big", bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: rnd.IntN(1000)}}}}),
			{{Key: "delete", Value: "big"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id - 1}}}, {Key: "limit", Value: 1}}}}},
			{{Key: "insert", Value: "big"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id - 1}, {Key: "n", Value: i}}}}},
			{{Key: "insert", Value: "names"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: fmt.Sprintf("%c%d", "aAäbB"[rnd.IntN(5)], rnd.IntN(100))}}}}},
			{{Key: "delete", Value: "names"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprintf("a%d", rnd.IntN(100))}}}, {Key: "limit", Value: 1}}}}},
			{{Key: "insert", Value: "log"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: fmt.Sprintf("%d %d %d", n, i, rnd.IntN(100))}}}}},
		} {
			_, _ = source.Call(ctx, bankCommand(cmd))
		}
	}
}

// define makes collections and drops them, until ctx is done.
func (a *audit) define(ctx context.Context, source mongo.Caller, n int) {
	rnd := rand.New(rand.NewPCG(a.seed, uint64(10_000+n)))
	for i := 0; mongo.Pause(ctx, 5*writePause) == nil; i++ {
		coll := fmt.Sprintf("made%d", rnd.IntN(2))
		for _, cmd := range []bson.D{
			{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}},
			{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x"}}}}},
			{{Key: "drop", Value: coll}},
		} {
			if cmd[0].Key != "drop" || rnd.IntN(3) == 0 {
				_, _ = source.Call(ctx, bankCommand(cmd))
			}
		}
	}
}

// plant writes to the target what no link writes.
func (a *audit) plant(t *testing.T, target mongo.Caller) {
	t.Helper()
	majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
	for _, cmd := range []bson.D{
		update("big", bson.D{{Key: "_id", Value: 7}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: int64(-1)}}}}),
		{{Key: "delete", Value: "big"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 8}}}, {Key: "limit", Value: 1}}}}},
		{{Key: "insert", Value: "big"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: int32(-9)}}}}},
		{{Key: "insert", Value: "names"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "nobody"}}}}},
		{{Key: "createIndexes", Value: "big"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "p", Value: 1}}}, {Key: "name", Value: "planted"}}}}},
	} {
		command(t, target, bankDB, append(cmd, majority))
	}
}

// verified compares once. While clients make and drop collections these may be such that they
// cannot be compared; everything else must be equal.
func (a *audit) verified(ctx context.Context, t *testing.T, source, target mongo.Caller, busy bool) []string {
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "cuts"})
	if err != nil {
		t.Error(err)
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, auditLimit)
	defer cancel()
	var found []string
	v, err := verify.New(verify.Config{
		Source: source, Target: target, Scope: must.Get(scope.New(scope.Config{}))(t),
		Cuts: &verify.LinkCuts{Links: store, By: "test", Wait: auditLimit},
		Deferred: func(ctx context.Context) (verify.Overlay, error) {
			specs, err := ddl.ReadDeferred(ctx, mongo.Reads(target), "replicator", "cuts")
			return specs.Overlay, err
		},
		RangeBytes: 50_000,
		Found: func(d *verify.Difference) error {
			name := d.Name
			if d.ID != nil {
				name = string(d.ID)
			}
			found = append(found, strings.Join([]string{string(d.Kind), string(d.NS), name}, " "))
			if busy {
				t.Errorf("while clients write: %+v", *d)
			}
			return nil
		},
	})
	if err != nil {
		t.Error(err)
		return nil
	}
	summary, err := v.Run(limited)
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		return nil
	case err != nil:
		t.Errorf("verification %d: %v", a.done.Load(), err)
		return nil
	}
	a.done.Add(1)
	for i := range summary.Collections {
		c := &summary.Collections[i]
		a.docs.Add(c.EqualDocs)
		if c.Fault != "" && (!busy || !strings.HasPrefix(string(c.NS), bankDB+".made") && c.NS != bankDB+".log") {
			t.Errorf("%s: %s", c.NS, c.Fault)
		}
	}
	slices.Sort(found)
	return found
}
