package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// rest are the cuts of two clusters to which nothing writes: the present times of both.
type rest struct {
	source, target mongo.Caller
	mu             sync.Mutex
	made           int
}

// Newest implements Cuts.
func (r *rest) Newest(context.Context) (Cut, bool, error) { return Cut{}, false, nil }

// Next implements Cuts.
func (r *rest) Next(ctx context.Context) (Cut, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made++
	// An entry on both sides, so that times are new and majority-committed.
	for _, c := range []mongo.Caller{r.source, r.target} {
		cmd, err := bson.Marshal(bson.D{
			{Key: "update", Value: "ticks"},
			{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "upsert", Value: true}}}},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
		})
		if err != nil {
			return Cut{}, err
		}
		if _, err := mongo.Twice(c).Call(ctx, mongo.Command{DB: "replicator", Body: cmd}); err != nil {
			return Cut{}, err
		}
	}
	source, err := mongo.OperationTime(ctx, r.source)
	if err != nil {
		return Cut{}, err
	}
	target, err := mongo.OperationTime(ctx, r.target)
	return Cut{Source: source, Target: target, At: time.Now()}, err
}

// hook is called before each command that reads the documents of a namespace, and after it.
type hook struct {
	mongo.Caller
	ns            string
	before, after func(cmd mongo.Command) error
}

// Call implements mongo.Caller.
func (h *hook) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	name, _ := it.Text()
	if more, ok := rawbson.Lookup(cmd.Body, "collection"); ok && it.Is("getMore") {
		name, _ = more.Text()
	} else if !it.Is("find") {
		name = ""
	}
	mine := name != "" && cmd.DB+"."+name == h.ns
	if mine && h.before != nil {
		if err := h.before(cmd); err != nil {
			return nil, err
		}
	}
	reply, err := h.Caller.Call(ctx, cmd)
	if mine && err == nil && h.after != nil {
		err = h.after(cmd)
	}
	return reply, err
}

// at returns the time that a command reads at.
func at(cmd mongo.Command) (bson.Timestamp, bool) {
	e, _ := rawbson.Lookup(cmd.Body, "readConcern")
	doc, _ := e.Document()
	e, ok := rawbson.Lookup(doc, "atClusterTime")
	ts, _ := e.Timestamp()
	return ts, ok
}

// TestCutTooOld: a range goes on at a newer cut, after the last document, when a cut cannot be
// read any more; all of it is compared, and nothing twice.
func TestCutTooOld(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := mixed(t, 700)
	a, b, want := spoiled(t, docs)
	insertRaw(t, source, "d.c", a...)
	insertRaw(t, target, "d.c", b...)
	for _, rangeBytes := range []int64{0, 50_000} {
		var mu sync.Mutex
		times := map[bson.Timestamp]int{}
		old := func(cmd mongo.Command) error {
			mu.Lock()
			defer mu.Unlock()
			ts, ok := at(cmd)
			if ok {
				times[ts]++
			}
			// A cut is good for a few commands, while there are any.
			if ok && times[ts] == 4 {
				return servererr.New(servererr.SnapshotTooOld, "planted")
			}
			return nil
		}
		cuts := &rest{source: source, target: target}
		summary, found := check(t, Config{
			Source: &hook{Caller: source, ns: "d.c", before: old}, Target: &hook{Caller: target, ns: "d.c", before: old},
			Cuts: cuts, RangeBytes: rangeBytes, Workers: 1,
		})
		c := &summary.Collections[0]
		if len(found) != len(want) || c.SourceDocs != int64(len(a)) || c.TargetDocs != int64(len(b)) || c.Fault != "" {
			t.Errorf("ranges of %d: %d differences, want %d: %+v", rangeBytes, len(found), len(want), c)
		}
		if c.First == nil || summary.First == nil || summary.Last == nil {
			t.Errorf("%+v", summary)
		}
		if rangeBytes > 0 && (len(times) < 6 || !summary.First.before(summary.Last)) {
			t.Errorf("%d times of %d cuts were read at", len(times), cuts.made)
		}
		for i := range found {
			if found[i].Cut == nil {
				t.Fatalf("%+v", found[i])
			}
		}
	}
	never := func(mongo.Command) error { return servererr.New(servererr.SnapshotTooOld, "planted") }
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: never}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) > 0 || summary.Unchecked() != 1 || summary.Collections[0].Fault == "" {
		t.Errorf("%d differences, %+v", len(found), summary.Collections)
	}
}

// TestDropped: a collection that is dropped, or made again, while it is compared reads as empty
// on one side. That is not a difference: the comparison begins again.
func TestDropped(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		source, target := cluster(t), cluster(t)
		insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, target, "d.c", neighbours(t, 0, 10)...)
		var once sync.Once
		drop := func(mongo.Command) error {
			once.Do(func() {
				for _, c := range []mongo.Caller{source, target} {
					run(t, c, "d", bson.D{{Key: "drop", Value: "c"}})
					if again {
						insertRaw(t, c, "d.c", neighbours(t, 5, 8)...)
					}
				}
			})
			return nil
		}
		for _, cuts := range []Cuts{nil, &rest{source: source, target: target}} {
			summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: drop}, Cuts: cuts})
			switch {
			case len(found) > 0 || summary.Unchecked() > 0:
				t.Errorf("again %t: %+v, %+v", again, found, summary.Collections)
			case again && (len(summary.Collections) != 1 || summary.Collections[0].EqualDocs != 3):
				t.Errorf("%+v", summary.Collections)
			case !again && len(summary.Collections) != 0:
				t.Errorf("%+v", summary.Collections)
			}
		}
	}
}

// TestConfirm: a write between reading the two sides of a capped collection is not a
// difference; a real difference is found.
func TestConfirm(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		insertRaw(t, c, "d.c", neighbours(t, 0, 10)...)
	}
	insertRaw(t, target, "d.c", neighbours(t, 100, 101)...)
	read := make(chan struct{})
	var once sync.Once
	afterSource := func(mongo.Command) error {
		once.Do(func() {
			insertRaw(t, source, "d.c", neighbours(t, 20, 30)...)
			insertRaw(t, target, "d.c", neighbours(t, 20, 30)...)
			close(read)
		})
		return nil
	}
	beforeTarget := func(mongo.Command) error {
		select {
		case <-read:
			return nil
		case <-time.After(patience):
			return errors.New("the source was not read")
		}
	}
	summary, found := check(t, Config{
		Source: &hook{Caller: source, ns: "d.c", after: afterSource}, Target: &hook{Caller: target, ns: "d.c", before: beforeTarget},
		Cuts: &rest{source: source, target: target},
	})
	if len(found) != 1 || brief(&found[0]) != "extra "+number(100) || summary.Collections[0].How != string(inserted)+", differences read again" {
		t.Errorf("%+v %+v", found, summary.Collections)
	}
}

// TestNoSnapshots: where documents cannot be read as of a time, differences are confirmed.
func TestNoSnapshots(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.c", neighbours(t, 1, 11)...)
	for _, code := range []servererr.Code{servererr.InvalidOptions, servererr.SnapshotUnavailable} {
		refuse := func(cmd mongo.Command) error {
			if _, ok := at(cmd); ok {
				return servererr.New(code, "planted")
			}
			return nil
		}
		summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: refuse}, Cuts: &rest{source: source, target: target}})
		if len(found) != 2 || summary.Unchecked() > 0 || summary.Collections[0].How != string(byID)+", differences read again" {
			t.Errorf("%+v %+v", found, summary.Collections)
		}
	}
}

// TestLongerThanCuts: a collection that cannot be read on after a document, and takes longer than a cut can be read, is read without one.
func TestLongerThanCuts(t *testing.T) {
	t.Parallel()
	for how, locales := range map[order][2]string{joined: {"de", "de"}, sorted: {"de", "fr"}} {
		source, target := cluster(t), cluster(t)
		for i, c := range []mongo.Caller{source, target} {
			run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: locales[i]}}}})
			insertRaw(t, c, "d.c", neighbours(t, i, 10+i)...)
		}
		var old atomic.Int64
		refuse := func(cmd mongo.Command) error {
			if _, ok := at(cmd); ok {
				old.Add(1)
				return servererr.New(servererr.SnapshotTooOld, "planted")
			}
			return nil
		}
		summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: refuse}, Cuts: &rest{source: source, target: target}})
		found = slices.DeleteFunc(found, func(d Difference) bool { return !isOfDocument(d.Kind) })
		if c := &summary.Collections[0]; len(found) != 2 || c.Fault != "" || c.How != string(how)+", differences read again" || old.Load() > 2*brieflyStale {
			t.Errorf("%s: %+v, %+v, %d reads at cuts", how, found, c, old.Load())
		}
	}
}

// TestCatalogMoves: a catalog that the source changes between the two listings is read again, and
// the differences that remain are found.
func TestCatalogMoves(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", neighbours(t, 0, 3)...)
	}
	cuts := &moving{rest: rest{source: source, target: target}, move: func(n int) {
		if n > mostRounds-2 {
			return
		}
		// Seen on the target only, if the source's listings are not compared.
		name := fmt.Sprint("x", n)
		for _, c := range []mongo.Caller{source, target} {
			run(t, c, "d", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}}}})
		}
		if n == 1 {
			run(t, source, "d", bson.D{{Key: "create", Value: "lost"}})
		}
	}}
	_, found := check(t, Config{Source: source, Target: target, Cuts: cuts})
	if len(found) != 1 || found[0].Kind != OfCollection || found[0].NS != "d.lost" {
		t.Errorf("%+v", found)
	}
}

// TestCatalogsTogether: catalogs that differ are read again together, and not at a cut for each, while
// the source is written to.
func TestCatalogsTogether(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	const each = 6
	for _, db := range []string{"d", "e"} {
		for n := range each {
			run(t, source, db, bson.D{{Key: "create", Value: fmt.Sprint("c", n)}})
			run(t, target, db, bson.D{{Key: "create", Value: fmt.Sprint("x", n)}})
		}
	}
	cuts := &rest{source: source, target: target}
	//nolint:contextcheck // The test's own writes have its context.
	busy := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if it := rawbson.NewIter(cmd.Body); it.Next() && it.Is("listCollections") {
			insertRaw(t, source, "replicator.busy", doc(element(t, "_id", bson.NewObjectID())))
		}
		return source.Call(ctx, cmd)
	})
	summary, found := check(t, Config{Source: busy, Target: target, Cuts: cuts, Scope: must.Get(scope.New(scope.Config{Exclude: []string{"replicator.*"}}))(t)})
	if len(found) != 4*each || summary.Unchecked() > 0 {
		t.Errorf("%d differences, %+v", len(found), summary)
	}
	if cuts.made > 2 {
		t.Errorf("%d cuts for %d differences of catalogs", cuts.made, len(found))
	}
}

// TestMadeAgainAndAgain: a collection that is another one each time that the target is listed was
// made and dropped by the source between its listings. That is not a difference, and the collection is unchecked.
func TestMadeAgainAndAgain(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	cuts := &moving{rest: rest{source: source, target: target}, move: func(n int) {
		if n > 1 {
			run(t, target, "d", bson.D{{Key: "drop", Value: "made"}})
		}
		run(t, target, "d", bson.D{{Key: "create", Value: "made"}})
		run(t, source, "d", bson.D{{Key: "create", Value: "made"}})
		run(t, source, "d", bson.D{{Key: "drop", Value: "made"}})
	}}
	summary, found := check(t, Config{Source: source, Target: target, Cuts: cuts})
	if len(found) > 0 || summary.Unchecked() != 1 {
		t.Errorf("%+v, %+v", found, summary)
	}
}

// TestAnotherEachTime: an index that is another one each time that the target is listed was built and
// dropped by the source between its listings. That is not a difference; an index that stays is.
func TestAnotherEachTime(t *testing.T) {
	t.Parallel()
	index := func(name string) bson.D {
		return bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}}}}
	}
	for _, until := range []int{100, 2} { // the last cut at which another index is there
		source, target := cluster(t), cluster(t)
		run(t, source, "d", bson.D{{Key: "create", Value: "c"}})
		run(t, target, "d", bson.D{{Key: "create", Value: "c"}})
		cuts := &moving{rest: rest{source: source, target: target}, move: func(n int) {
			if n > 1 && n <= until {
				run(t, target, "d", bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: fmt.Sprint("i", n-1)}})
			}
			if n <= until {
				run(t, target, "d", index(fmt.Sprint("i", n)))
			}
			insertRaw(t, source, "replicator.busy", doc(element(t, "_id", bson.NewObjectID())))
		}}
		//nolint:contextcheck // The test's own writes have its context.
		busy := callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
			if it := rawbson.NewIter(cmd.Body); it.Next() && it.Is("listCollections") {
				insertRaw(t, source, "replicator.busy", doc(element(t, "_id", bson.NewObjectID())))
			}
			return source.Call(ctx, cmd)
		})
		summary, found := check(t, Config{Source: busy, Target: target, Cuts: cuts, Scope: must.Get(scope.New(scope.Config{Exclude: []string{"replicator.*"}}))(t)})
		if until > 2 && (len(found) > 0 || summary.Unchecked() != 1) {
			t.Errorf("another each time: %+v, %+v", found, summary)
		}
		if until == 2 && (len(found) != 1 || found[0].Name != "i2" || found[0].What != whatExtra || summary.Unchecked() > 0) {
			t.Errorf("one that stays: %+v, %+v", found, summary)
		}
	}
}

// TestMadeMeanwhile: a collection that the source has made or dropped between the two listings may
// be on the target or not: neither is a difference.
func TestMadeMeanwhile(t *testing.T) {
	t.Parallel()
	v := must.Get(New(Config{Source: &shelf{}, Target: &shelf{}, Scope: everything(t), Found: func(*Difference) error { return nil }}))(t)
	with := func(there bool) *listing {
		l := &listing{collections: map[oplog.Namespace]*listed{}}
		if there {
			l.collections["d.c"] = &listed{ns: "d.c", kind: typeCollection, options: doc()}
		}
		return l
	}
	for _, before := range []bool{false, true} {
		for _, onTarget := range []bool{false, true} {
			all := v.compareCatalogs(with(before), with(onTarget), with(!before), nil)
			if len(all) != 1 || len(all[0].found) > 0 || all[0].unsettled == nil {
				t.Errorf("there before %t, on the target %t: %+v", before, onTarget, all)
			}
			all = v.compareCatalogs(with(before), with(onTarget), with(before), nil)
			if differs := len(all) > 0 && len(all[0].found) > 0; differs != (before != onTarget) {
				t.Errorf("there %t, on the target %t: %+v", before, onTarget, all)
			}
		}
	}
}

// moving are cuts with something that happens when they are made.
type moving struct {
	rest
	move func(n int)
}

// Next implements Cuts.
func (m *moving) Next(ctx context.Context) (Cut, error) {
	cut, err := m.rest.Next(ctx)
	m.move(m.made)
	return cut, err
}

// TestCutter: a cut is used for other ranges while it is fresh and includes the listing.
func TestCutter(t *testing.T) {
	t.Parallel()
	n := uint32(0)
	next := cutsFunc(func() Cut {
		n++
		return Cut{Source: bson.Timestamp{T: n}, Target: bson.Timestamp{T: 100 + n}, At: time.Now()}
	})
	c := &cutter{cuts: next}
	get := func(want uint32) Cut {
		t.Helper()
		cut := must.Get(c.get(t.Context()))(t)
		if cut.Source.T != want {
			t.Errorf("cut %d, want %d", cut.Source.T, want)
		}
		return cut
	}
	get(1)
	first := get(1)
	c.need(bson.Timestamp{T: 2}, bson.Timestamp{})
	get(2)
	c.need(bson.Timestamp{}, bson.Timestamp{T: 103})
	last := get(3)
	c.leave(&first)
	get(3)
	c.leave(&last)
	get(4)
	must.Get(c.reach(t.Context(), bson.Timestamp{T: 5}))(t)
	get(5)
	c.taken = c.taken.Add(-briefly)
	get(5)
	c.taken = c.taken.Add(briefly - freshFor)
	get(6)
	c.setBrief()
	get(6)
	c.taken = c.taken.Add(-briefly)
	get(7)
}

type cutsFunc func() Cut

// Newest implements Cuts.
func (cutsFunc) Newest(context.Context) (Cut, bool, error) { return Cut{}, false, nil }

// Next implements Cuts.
func (f cutsFunc) Next(context.Context) (Cut, error) { return f(), nil }

// TestConfirmMoving: a document that the source changes each time that it is read again is neither
// different nor equal: the collection is unchecked.
func TestConfirmMoving(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	for _, c := range []mongo.Caller{source, target} {
		run(t, c, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	}
	insertRaw(t, source, "d.c", doc(element(t, "_id", int32(1)), element(t, "n", int32(0))))
	insertRaw(t, target, "d.c", doc(element(t, "_id", int32(1)), element(t, "n", int32(-1))))
	changed := 0
	change := func(mongo.Command) error {
		changed++
		run(t, source, "d", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int32(1)}}}}}},
		}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
		return nil
	}
	summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", after: change}, Target: target, Cuts: &rest{source: source, target: target}})
	if len(found) > 0 || summary.Unchecked() != 1 || changed < 2*confirmTries {
		t.Errorf("%+v %+v, changed %d times", found, summary.Collections, changed)
	}
}
