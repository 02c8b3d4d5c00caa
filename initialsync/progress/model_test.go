package progress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// copyModel is the expected copy of a link after any course of two processes.
type copyModel struct {
	term        int64
	copy        Copy
	collections map[string]Collection // by UUID
	ranges      map[string]Range      // by UUID and index
	data        map[string]bool
}

// copyProcess is one that makes the copy.
type copyProcess struct {
	store *Store
	link  *Link // nil: it has to begin
	// late is a transaction that was left open under lateTerm, and its effect.
	late     *mongo.Txn
	lateTerm int64
	lateNext Range
	lateData string
}

// copyCourse is one run of the property.
type copyCourse struct {
	ctx   context.Context // bounds all of it
	g     *target
	link  string
	model copyModel
	procs [2]*copyProcess
	n     int
}

// TestCopyCourses: whatever two processes do to one copy, in any order, with commits
// that are lost or late, each Acquire finds the state committed under the newest
// term, and exactly the data of the committed moves are there.
func TestCopyCourses(t *testing.T) {
	t.Parallel()
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		ctx, cancel := context.WithTimeout(t.Context(), courseTime)
		defer cancel()
		c := &copyCourse{ctx: ctx, g: g, link: fmt.Sprintf("link-%d", n)}
		for i := range c.procs {
			c.procs[i] = &copyProcess{store: must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: c.link}))(rt)}
		}
		must.Succeed(rt, c.procs[0].store.Create(t.Context(), copyState(2)))
		c.model.data = map[string]bool{}
		c.renew(*firstCopy())
		rt.Repeat(map[string]func(*rapid.T){
			"begin": c.begin, "move": c.move, "move 2": c.move, "move 3": c.move, "late": c.commitLate,
			"add": c.add, "save": c.save, "save 2": c.save, "update": c.update, "anew": c.anew,
			"": c.check,
		})
	})
}

// renew makes the model's copy an empty one.
func (c *copyCourse) renew(to Copy) {
	c.model.copy = to
	c.model.collections, c.model.ranges = map[string]Collection{}, map[string]Range{}
}

// pick draws a process that has, or had, the lease; nil if a process has started
// instead.
func (c *copyCourse) pick(rt *rapid.T) *copyProcess {
	var can []*copyProcess
	for _, p := range c.procs {
		if p.link != nil {
			can = append(can, p)
		}
	}
	if len(can) == 0 {
		c.begin(rt)
		return nil
	}
	return rapid.SampledFrom(can).Draw(rt, "process")
}

// refused reports whether p is of an older term, and checks that err says so.
func (c *copyCourse) refused(rt *rapid.T, p *copyProcess, err error) bool {
	if p.link.Term() == c.model.term {
		return false
	}
	if !errors.Is(err, lease.ErrFenced) {
		rt.Fatalf("term %d in term %d: %v", p.link.Term(), c.model.term, err)
	}
	return true
}

func (c *copyCourse) begin(rt *rapid.T) {
	p := c.procs[rapid.IntRange(0, 1).Draw(rt, "process")]
	p.link = acquired(rt)(p.store.Acquire(c.ctx, 0))
	c.model.term = p.link.Term()
	if diff := gocmp.Diff(&c.model.copy, p.link.State().Copy); diff != "" {
		rt.Fatalf("the copy: %s", diff)
	}
	c.compare(rt, p.link)
}

// compare compares what Copies reads.
func (c *copyCourse) compare(rt *rapid.T, h *Link) {
	colls, ranges := copies(c.ctx, rt, h)
	gotColls, gotRanges := map[string]Collection{}, map[string]Range{}
	for _, coll := range colls {
		gotColls[coll.UUID.String()] = coll
	}
	for _, r := range ranges {
		gotRanges[rangeKey(r)] = r
	}
	if diff := gocmp.Diff(c.model.collections, gotColls) + gocmp.Diff(c.model.ranges, gotRanges); diff != "" {
		rt.Fatal(diff)
	}
}

func rangeKey(r Range) string { return fmt.Sprint(r.UUID, r.Index) }

// end draws how a transaction of p ends, and reports whether it counts.
func (c *copyCourse) end(rt *rapid.T, p *copyProcess, txn *mongo.Txn) bool {
	switch rapid.SampledFrom([]string{"commit", "commit", "abort", "lost", "unsent"}).Draw(rt, "end") {
	case "commit":
		must.Get(txn.Commit(c.ctx, false))(rt)
		return true
	case "abort":
		txn.Abort(c.ctx)
		return false
	case "lost":
		c.cut(true, func() { _, _ = txn.Commit(c.ctx, false) })
		p.link = nil
		return true
	}
	c.cut(false, func() { _, _ = txn.Commit(c.ctx, false) })
	p.link = nil
	return false
}

// cut runs work with commits whose replies are lost.
func (c *copyCourse) cut(sent bool, work func()) {
	c.g.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			return errCut, sent
		}
		return nil, false
	})
	work()
	c.g.Intercept(nil)
}

func (c *copyCourse) move(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil || len(c.model.ranges) == 0 {
		return
	}
	key := rapid.SampledFrom(slices.Sorted(maps.Keys(c.model.ranges))).Draw(rt, "range")
	r := c.model.ranges[key]
	if r.Done {
		return
	}
	c.n++
	l, id := p.link.Lane(rapid.IntRange(0, 1).Draw(rt, "lane")), fmt.Sprint(c.link, " ", c.n)
	txn, next := l.Session().Begin(), moved(r, rapid.Bool().Draw(rt, "done"))
	if err := l.MoveRange(c.ctx, txn, &r, &next); c.refused(rt, p, err) {
		txn.Abort(c.ctx)
		return
	} else if err != nil {
		rt.Fatal(err)
	}
	must.Get(txn.Call(c.ctx, insert(id)))(rt)
	if rapid.IntRange(0, 4).Draw(rt, "open") == 0 {
		p.late, p.lateTerm, p.lateNext, p.lateData, p.link = txn, p.link.Term(), next, id, nil
		return
	}
	if c.end(rt, p, txn) {
		c.model.ranges[key], c.model.data[id] = next, true
	}
}

// commitLate commits a transaction that was left open.
func (c *copyCourse) commitLate(rt *rapid.T) {
	p := c.procs[rapid.IntRange(0, 1).Draw(rt, "process")]
	if p.late == nil {
		return
	}
	_, err := p.late.Commit(c.ctx, false)
	if same := p.lateTerm == c.model.term; (err == nil) != same {
		rt.Fatalf("a late commit of term %d in term %d: %v", p.lateTerm, c.model.term, err)
	}
	if err == nil {
		c.model.ranges[rangeKey(p.lateNext)], c.model.data[p.lateData] = p.lateNext, true
	}
	p.late = nil
}

func (c *copyCourse) add(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	var list []Collection
	for range rapid.IntRange(1, 3).Draw(rt, "collections") {
		coll := collection(rapid.IntRange(1, 4).Draw(rt, "collection"))
		coll.Docs = rapid.Int64().Draw(rt, "docs")
		list = append(list, coll)
	}
	if err := p.link.AddCollections(c.ctx, list); c.refused(rt, p, err) {
		return
	} else if err != nil {
		rt.Fatal(err)
	}
	for _, coll := range list {
		if _, ok := c.model.collections[coll.UUID.String()]; !ok {
			c.model.collections[coll.UUID.String()] = coll
		}
	}
}

// busy reports whether a transaction that was left open may conflict.
func (c *copyCourse) busy() bool {
	for _, p := range c.procs {
		if p.late != nil && p.lateTerm == c.model.term {
			return true
		}
	}
	return false
}

func (c *copyCourse) save(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil || c.busy() {
		return
	}
	n := rapid.IntRange(1, 4).Draw(rt, "collection")
	coll := collection(n)
	coll.State = rapid.SampledFrom([]State{Created, Filled, Done, Done}).Draw(rt, "state")
	coll.Gone = rapid.IntRange(0, 5).Draw(rt, "gone") == 0
	var ranges []Range
	if coll.State == Created {
		for i := range rapid.IntRange(0, 2).Draw(rt, "ranges") {
			ranges = append(ranges, part(n, i))
		}
	}
	err := p.link.Lane(rapid.IntRange(0, 1).Draw(rt, "lane")).SaveCollection(c.ctx, &coll, ranges)
	if c.refused(rt, p, err) {
		return
	}
	if !coll.Gone && coll.State != Created && c.open(coll.UUID.String()) {
		must.Fail(rt, err, lease.ErrRewound)
		return
	}
	must.Succeed(rt, err)
	c.model.collections[coll.UUID.String()] = coll
	for _, r := range ranges {
		if _, ok := c.model.ranges[rangeKey(r)]; !ok {
			c.model.ranges[rangeKey(r)] = r
		}
	}
}

// open reports whether a collection has ranges that are not done.
func (c *copyCourse) open(uuid string) bool {
	for _, r := range c.model.ranges {
		if r.UUID.String() == uuid && !r.Done {
			return true
		}
	}
	return false
}

// complete reports whether the oplog may be applied to the copy.
func (c *copyCourse) complete() bool {
	for id, coll := range c.model.collections {
		if coll.State != Done || !coll.Gone && c.open(id) {
			return false
		}
	}
	for _, r := range c.model.ranges {
		if _, ok := c.model.collections[r.UUID.String()]; !ok && !r.Done {
			return false
		}
	}
	return true
}

func (c *copyCourse) update(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil || p.link.Copy().Phase != Copying {
		return
	}
	next := *p.link.Copy() // an older term's may be an older one
	next.Cleared, next.Listed = true, true
	if rapid.Bool().Draw(rt, "replay") {
		next.Phase, next.Stop = Replaying, ot(200)
	}
	cut := rapid.SampledFrom([]string{"", "", "lost", "unsent"}).Draw(rt, "cut")
	var err error
	if cut == "" {
		err = p.link.UpdateCopy(c.ctx, next)
	} else {
		c.cut(cut == "lost", func() { err = p.link.UpdateCopy(c.ctx, next) })
	}
	if c.refused(rt, p, err) {
		return
	}
	switch {
	case next.Phase == Replaying && !c.complete():
		must.Fail(rt, err, lease.ErrRewound)
		return
	case cut != "":
		must.Fail(rt, err, errCut)
		p.link = nil
	default:
		must.Succeed(rt, err)
	}
	if cut != "unsent" {
		c.model.copy = next
	}
}

// anew starts the next copy.
func (c *copyCourse) anew(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil || c.busy() || rapid.IntRange(0, 2).Draw(rt, "anew") > 0 {
		return
	}
	next := *firstCopy()
	next.Number = p.link.Copy().Number + 1
	next.Begin, next.FetchFrom = ot(100+uint32(next.Number)), ot(80)
	err := p.link.BeginCopy(c.ctx, next, 1)
	if c.refused(rt, p, err) {
		return
	}
	must.Succeed(rt, err)
	c.renew(next)
	p.link = acquired(rt)(p.store.Acquire(c.ctx, p.link.Term()))
	c.model.term = p.link.Term()
	c.compare(rt, p.link)
	must.Succeed(rt, p.link.DropCopies(c.ctx, next.Number))
	c.compare(rt, p.link)
}

// check compares the data.
func (c *copyCourse) check(rt *rapid.T) {
	for id := range c.model.data {
		if !has(c.ctx, rt, c.g, id) {
			rt.Fatalf("%s is not in the target", id)
		}
	}
	for _, p := range c.procs {
		if p.late != nil && has(c.ctx, rt, c.g, p.lateData) {
			rt.Fatalf("%s of an open transaction is in the target", p.lateData)
		}
	}
	reply := must.Get(c.g.Call(c.ctx, metadata.Find("data", "c", 100_000, between(c.link+" ", c.link+"!"))))(rt)
	if docs := must.Get(metadata.Found(reply))(rt); len(docs) != len(c.model.data) {
		rt.Fatalf("%d documents in the target, want %d", len(docs), len(c.model.data))
	}
}

// between appends the filter for the _ids from one, included, to another, excluded.
func between(from, to string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "$gte", from)
			return bsoncore.AppendStringElement(dst, "$lt", to)
		})
	}
}
