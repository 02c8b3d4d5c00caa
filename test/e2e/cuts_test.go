package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// Environment variables of TestCuts: the first seed, and how many.
const (
	envCutSeed  = "CUT_SEED"
	envCutSeeds = "CUT_SEEDS"
)

// TestCuts moves money between documents of several collections, in transactions, and
// counts in two collections in turn, while members of both sets and the mirror itself are
// killed. At the cluster time of each cut that is announced, the target has exactly what the
// source had as of the cut's optime, so no money is missing, and no count is ahead of the
// one that was before it.
func TestCuts(t *testing.T) {
	first := number(t, envCutSeed, 1)
	for seed := first; seed < first+number(t, envCutSeeds, 1); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			t.Parallel()
			openBank(t, seed).run(t)
		})
	}
}

// The collections of a bank.
var (
	accounts = []string{"a", "b", "c"}
	counters = []string{"first", "second"}
)

const (
	bankDB = "bank"
	// perCollection is how many accounts a collection has, balance what each has at first.
	perCollection, balance = 8, 100
	// cutsWanted is for how many optimes of the source cuts are checked, at least.
	cutsWanted = 4
	// writePause is the mean pause of a client between two writes, so that the mirror keeps up.
	writePause = 10 * time.Millisecond
)

// bank is one run of TestCuts.
type bank struct {
	*live
	seed uint64

	mu   sync.Mutex
	seen []sighting // guarded by mu
}

// sighting is what the target has at the cluster time of a cut.
type sighting struct {
	cut  checkpoint.Cut
	docs map[string]string // by namespace and _id
}

func openBank(t *testing.T, seed int64) *bank {
	dialect := []string{"5.0", "7.0", "8.0", "6.0"}[seed%4]
	l := &live{
		provider:  provider{name: dialect},
		liveTimes: liveTimes{total: 1500 * time.Millisecond, between: 250 * time.Millisecond, down: 100 * time.Millisecond, limit: time.Minute},
		rnd:       rand.New(rand.NewPCG(uint64(seed), 2)),
		source:    openEmbedded(t, dialect, clusterOptions{name: "source", members: 3, seed: seed, history: time.Minute}),
		target:    openEmbedded(t, dialect, clusterOptions{name: "target", members: 3, seed: seed + 1, history: time.Minute}),
	}
	l.mirror = &mirror{
		t: t, source: l.source.uriFor(admin), target: l.target.uriFor(admin),
		cfg: pipeline.Config{
			Link: "cuts", Scope: must.Get(scope.New(scope.Config{}))(t), Relaxed: seed%3 == 0, Await: time.Second,
			RetryMax: 500 * time.Millisecond, CutInterval: 50 * time.Millisecond, FlushDocs: []int{20, 2000}[seed%2],
		},
	}
	return &bank{live: l, seed: uint64(seed)}
}

func (b *bank) run(t *testing.T) {
	b.mirror.begin()
	defer b.mirror.end(errEnd)
	b.mirror.await(b.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
	b.found(t)
	source, target := connect(t, b.source.uriFor(admin)), connect(t, b.target.uriFor(admin))
	ctx, stop := context.WithCancelCause(t.Context())
	writing, enough := context.WithCancelCause(ctx)
	var work, watch sync.WaitGroup
	defer func() {
		stop(errEnd)
		work.Wait()
		watch.Wait()
	}()
	for n := range 3 {
		work.Go(func() { b.transfers(ctx, writing, source, n) })
		work.Go(func() { b.counts(ctx, writing, source, n) })
	}
	watch.Go(func() { b.watch(ctx, t, target) })
	b.hurt(t, func() (string, error) { return b.injury(t) })
	b.whole(t)
	b.mirror.await(b.limit, "enough cuts are told", func(monitor.Snapshot) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		optimes := map[oplog.OpTime]bool{}
		for i := range b.seen {
			optimes[b.seen[i].cut.Source] = true
		}
		return len(optimes) >= cutsWanted
	})
	enough(errEnd)
	work.Wait()
	stop(errEnd)
	watch.Wait()
	b.mirror.drain(b.limit, b.last(t))
	b.same(t)
	b.prove(t)
}

// found opens the accounts, all of them in one transaction.
func (b *bank) found(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	source := connect(t, b.source.uriFor(admin))
	// The source may elect another primary meanwhile. The command may have been executed before.
	again := func(do func() error) {
		must.Succeed(t, mongo.Retry{For: b.limit, Again: func(error) bool { return true }}.Do(ctx, func() error {
			if err := do(); err != nil && !servererr.IsNamespaceThere(err) && !servererr.IsDuplicateKey(err) {
				return err
			}
			return nil
		}))
	}
	for _, coll := range slices.Concat(accounts, counters) {
		again(func() error {
			reply, err := source.Call(ctx, bankCommand(bson.D{{Key: "create", Value: coll}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}))
			if e := mongo.ConcernError(reply); err == nil && e != nil {
				err = e
			}
			return err
		})
	}
	insert := func(txn *mongo.Txn, coll string, docs bson.A) error {
		reply, err := txn.Call(ctx, bankCommand(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}}))
		if err == nil {
			_, err = mongo.Written(reply)
		}
		return err
	}
	again(func() error {
		s := mongo.NewSession(source, mongo.NewSessionID(), 1)
		return s.InTxn(ctx, true, func(txn *mongo.Txn) error {
			for _, coll := range accounts {
				docs := bson.A{}
				for id := range perCollection {
					docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: balance}})
				}
				if err := insert(txn, coll, docs); err != nil {
					return err
				}
			}
			for _, coll := range counters {
				docs := bson.A{}
				for id := range 3 {
					docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: 0}})
				}
				if err := insert(txn, coll, docs); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func bankCommand(cmd bson.D) mongo.Command {
	body, err := bson.Marshal(cmd)
	if err != nil {
		panic("a test's command cannot be marshalled: " + err.Error())
	}
	return mongo.Command{DB: bankDB, Body: body}
}

func update(coll string, filter, change bson.D) bson.D {
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: change}}}}}
}

// transfers moves money until soft is done, and waits for the last transaction: the server may execute one that is
// given up after the last entry. What fails is forgotten: a transaction is executed completely or not at all.
func (b *bank) transfers(ctx, soft context.Context, source mongo.Caller, n int) {
	rnd := rand.New(rand.NewPCG(b.seed, uint64(n)))
	for mongo.Pause(soft, writePause) == nil {
		amount := 1 + rnd.IntN(20)
		s := mongo.NewSession(source, mongo.NewSessionID(), 1)
		_ = s.InTxn(ctx, false, func(txn *mongo.Txn) error {
			for _, by := range []int{amount, -amount} {
				id := bson.D{{Key: "_id", Value: rnd.IntN(perCollection)}}
				change := bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: by}}}}
				reply, err := txn.Call(ctx, bankCommand(update(accounts[rnd.IntN(len(accounts))], id, change)))
				if err == nil {
					_, err = mongo.Written(reply)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// counts counts in the first collection, then in the second one, until soft is done, and waits for the last write.
func (b *bank) counts(ctx, soft context.Context, source mongo.Caller, n int) {
	for v := 1; ; v++ {
		for _, coll := range counters {
			if mongo.Pause(soft, writePause) != nil {
				return
			}
			cmd := update(coll, bson.D{{Key: "_id", Value: n}, {Key: "v", Value: v - 1}}, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}})
			cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
			for {
				// A late one of earlier tries meets another count, and changes nothing.
				reply, err := source.Call(ctx, bankCommand(cmd))
				if err == nil && mongo.ConcernError(reply) == nil {
					if _, err := mongo.Written(reply); err == nil {
						break
					}
				}
				if mongo.Pause(soft, writePause) != nil {
					return
				}
			}
		}
	}
}

// watch reads the target at each cut that is announced.
func (b *bank) watch(ctx context.Context, t *testing.T, target mongo.Caller) {
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "cuts"})
	if err != nil {
		t.Error(err)
		return
	}
	known := map[bson.Timestamp]bool{}
	for mongo.Pause(ctx, 10*time.Millisecond) == nil {
		list, err := store.Cuts(ctx)
		if err != nil {
			continue // the target fails over
		}
		for i := range list {
			if known[list[i].Target] {
				continue
			}
			known[list[i].Target] = true
			docs, err := b.readAt(ctx, target, list[i].Target)
			switch {
			case err == nil:
				b.mu.Lock()
				b.seen = append(b.seen, sighting{list[i], docs})
				b.mu.Unlock()
			case isUnreadable(err): // another one is
			case ctx.Err() == nil:
				t.Errorf("read the cut at %s: %v", list[i].Source, err)
			}
		}
	}
}

// isUnreadable reports whether a server cannot read at a time at all: a member that was started or
// copied since then has no history of it (SnapshotTooOld), and before 7.0 a collection that was
// created since then cannot be read (SnapshotUnavailable).
func isUnreadable(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && (e.Code == servererr.SnapshotTooOld || e.Code == servererr.SnapshotUnavailable)
}

// readAt reads the bank at a cluster time of the target.
func (b *bank) readAt(ctx context.Context, target mongo.Caller, ts bson.Timestamp) (map[string]string, error) {
	docs := map[string]string{}
	reads := mongo.Retry{For: b.limit, Again: func(err error) bool { return !isUnreadable(err) }}
	for _, coll := range slices.Concat(accounts, counters) {
		cmd := bankCommand(bson.D{
			{Key: "find", Value: coll},
			{Key: "batchSize", Value: 1000},
			{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: ts}}},
		})
		err := reads.Do(ctx, func() error {
			reply, err := target.Call(ctx, cmd)
			if err != nil {
				return err
			}
			batch, err := mongo.ReadBatch(reply)
			for _, doc := range batch.Docs {
				docs[bankDB+"."+coll+" "+doc.Lookup("_id").String()] = doc.String()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return docs, nil
}

// prove compares the sightings with the source's oplog.
func (b *bank) prove(t *testing.T) {
	t.Helper()
	slices.SortFunc(b.seen, func(x, y sighting) int { return x.cut.Source.Compare(y.cut.Source) })
	store := memstore.New(memstore.Config{})
	oracle := must.Get(memstore.NewApplier(store, memstore.InitialSync, txn.Config{}))(t)
	defer func() { must.Succeed(t, oracle.Close()) }()
	log := b.oplog(t)
	next, between := 0, map[oplog.OpTime]bool{}
	for _, s := range b.seen {
		for next < len(log) && !log[next].OpTime.After(s.cut.Source) {
			must.Succeed(t, oracle.Apply(&log[next]))
			next++
		}
		if next == 0 || log[next-1].OpTime != s.cut.Source {
			t.Errorf("the cut is at %s, which is no entry of the source's log", s.cut.Source)
		}
		between[s.cut.Source] = true
		if diff := cmp.Diff(contents(store), s.docs); diff != "" {
			t.Errorf("the cut at %s, %v (-source +target):\n%s", s.cut.Source, s.cut.Target, diff)
		}
		b.holds(t, s)
	}
	t.Logf("%d cuts at %d optimes, among %d entries", len(b.seen), len(between), len(log))
}

// holds checks the invariants of the source.
func (b *bank) holds(t *testing.T, s sighting) {
	t.Helper()
	sum, v := int64(0), map[string]int64{}
	for key, text := range s.docs {
		var doc struct{ V int64 }
		must.Succeed(t, bson.UnmarshalExtJSON([]byte(text), false, &doc))
		if strings.HasPrefix(key, bankDB+".first") || strings.HasPrefix(key, bankDB+".second") {
			v[key] = doc.V
		} else {
			sum += doc.V
		}
	}
	if want := int64(len(accounts) * perCollection * balance); sum != want && len(s.docs) > 0 {
		t.Errorf("at %s the accounts have %d, want %d", s.cut.Source, sum, want)
	}
	for key, first := range v {
		after, isFirst := strings.CutPrefix(key, bankDB+".first")
		if second := v[bankDB+".second"+after]; isFirst && first != second && first != second+1 {
			t.Errorf("at %s the first count is %d, the second one %d", s.cut.Source, first, second)
		}
	}
}

// contents returns the bank as readAt does.
func contents(store *memstore.Store) map[string]string {
	docs := map[string]string{}
	for _, c := range store.Collections() {
		if c.NS().DB() != bankDB {
			continue
		}
		for doc := range c.All() {
			docs[string(c.NS())+" "+doc.Lookup("_id").String()] = doc.String()
		}
	}
	return docs
}

// oplog reads the source's log.
func (b *bank) oplog(t *testing.T) []oplog.Entry {
	t.Helper()
	source := connect(t, b.source.uriFor(admin))
	body := must.Get(bson.Marshal(bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}))(t)
	var docs []bson.Raw
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		docs, err = mongo.Retry{}.ReadAll(t.Context(), source, mongo.NewSessionID(), "local", body)
		return err
	}))
	log := make([]oplog.Entry, 0, len(docs))
	for _, doc := range docs {
		log = append(log, must.Get(oplog.ParseEntry(doc))(t))
	}
	return log
}
