package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// model is the expected state of a link.
type model struct {
	// term is the link's, began the last one that an Acquire has returned: if it is
	// lower, an Acquire was interrupted, and the lanes may be fenced or not.
	term, began int64
	applied     oplog.OpTime
	lanes       []Position // the last one is the barrier
	begun       []Position
	data        map[string]bool
	routing     routing
}

// process is a process that uses the link.
type process struct {
	store *Store
	link  *Link
	// lost reports that the outcome of a command is unknown, so that the process has to
	// acquire the lease again.
	lost bool
	// late is a transaction that was left open, and its effect.
	late     *mongo.Txn
	lateTerm int64
	lateLane int
	lateTo   Position
	lateData string
}

// course is one run of the property.
type course struct {
	ctx   context.Context // limits the course: a command may wait for a lock forever
	g     *target
	model model
	procs [2]*process
	clock uint32
}

// courseTime limits a course, which takes a fraction of a second.
const courseTime = time.Minute

// TestCourses: for any actions of two processes on one link, in any order, with lost and
// late commits, the target has exactly the flushes that were committed in the term that
// was current then, and each Acquire returns their last positions, and the routes.
func TestCourses(t *testing.T) {
	t.Parallel()
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		ctx, cancel := context.WithTimeout(t.Context(), courseTime)
		defer cancel()
		c := &course{ctx: ctx, g: g, clock: 100}
		name := fmt.Sprintf("link-%d", n)
		writers := rapid.IntRange(1, 3).Draw(rt, "writers")
		for i := range c.procs {
			c.procs[i] = &process{store: must.Get(New(Config{Target: g, Link: name}))(rt)}
		}
		must.Succeed(rt, c.procs[0].store.Create(t.Context(), first(writers)))
		start := at(100, AllOps)
		c.model = model{
			applied: ot(100), lanes: slices.Repeat([]Position{start}, writers+1),
			begun: make([]Position, writers+1), data: map[string]bool{}, routing: routing{routes: map[oplog.Namespace]route{}},
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin":   func(rt *rapid.T) { c.begin(rt) },
			"flush":   func(rt *rapid.T) { c.flush(rt, name) },
			"flush 2": func(rt *rapid.T) { c.flush(rt, name) },
			"flush 3": func(rt *rapid.T) { c.flush(rt, name) },
			"late 2":  func(rt *rapid.T) { c.commitLate(rt) },
			"late":    func(rt *rapid.T) { c.commitLate(rt) },
			"advance": func(rt *rapid.T) { c.advance(rt) },
			"alone":   func(rt *rapid.T) { c.alone(rt) },
			"resize":  func(rt *rapid.T) { c.resize(rt) },
			"reroute": func(rt *rapid.T) { c.reroute(rt) },
			"":        func(rt *rapid.T) { c.check(rt) },
		})
		for id := range c.model.data {
			if !has(ctx, rt, g, id) {
				rt.Errorf("%s is not in the target", id)
			}
		}
	})
}

// pick draws a process that has a Link, or nil. Rapid gives up a course in which
// many actions are skipped, so none is.
func (c *course) pick(rt *rapid.T) *process {
	var can []*process
	for _, p := range c.procs {
		if p.link != nil && !p.lost {
			can = append(can, p)
		}
	}
	if len(can) == 0 {
		c.begin(rt)
		return nil
	}
	return rapid.SampledFrom(can).Draw(rt, "process")
}

// stale reports whether a newer term has begun.
func (c *course) stale(p *process) bool { return p.link.Term() != c.model.began }

// between reports whether a lane of p may be fenced although no newer term has begun.
func (c *course) between(p *process, err error) bool {
	return errors.Is(err, lease.ErrFenced) && !c.stale(p) && c.model.began != c.model.term
}

func (c *course) lane(p *process, i int) *Lane {
	if i == len(p.link.lanes) {
		return p.link.Barrier()
	}
	return p.link.Lane(i)
}

func (c *course) begin(rt *rapid.T) {
	p := c.procs[rapid.IntRange(0, 1).Draw(rt, "process")]
	after := int64(0)
	if p.link != nil && rapid.Bool().Draw(rt, "again") {
		after = p.link.Term()
	}
	cut := rapid.IntRange(0, 8).Draw(rt, "cut")
	if cut > 0 {
		// The command that raises the term either succeeds or is never sent.
		var n atomic.Int64 // the lanes are fenced concurrently
		c.g.Intercept(func(cmd mongo.Command) (error, bool) {
			if n.Add(1) == int64(cut) && simcaller.Name(cmd) == "find" {
				return errCut, true
			}
			return nil, false
		})
	}
	h, err := p.store.Acquire(c.ctx, after)
	c.g.Intercept(nil)
	mine := p.link != nil && c.model.term == p.link.Term()
	switch {
	case errors.Is(err, errCut):
		// It may have raised the term; no process has the lease then.
		link := must.Get(p.store.readLink(c.ctx))(rt)
		if link.Term != c.model.term {
			c.model.term = link.Term
			p.lost = true
		}
		return
	case errors.Is(err, lease.ErrFenced):
		link := must.Get(p.store.readLink(c.ctx))(rt)
		if after == 0 || mine || link.lease.Holder == p.store.holder {
			rt.Fatalf("fenced by nobody: %v", err)
		}
		return
	case err != nil:
		rt.Fatal(err)
	case after != 0 && !mine && h.Term() != c.model.term+1:
		rt.Fatalf("began term %d behind %d", h.Term(), c.model.term)
	}
	if h.Term() != c.model.term+1 {
		rt.Fatalf("term %d after %d", h.Term(), c.model.term)
	}
	c.model.term, c.model.began, p.link, p.lost = h.Term(), h.Term(), h, false
	st := h.State()
	if diff := cmp.Diff(c.model.lanes, append(st.Lanes, st.Barrier)); diff != "" {
		rt.Fatalf("lanes: %s", diff)
	}
	if diff := cmp.Diff(c.model.begun, append(st.LanesAnnounced, st.Announced)); diff != "" {
		rt.Fatalf("begun: %s", diff)
	}
	if st.Applied != c.model.applied {
		rt.Fatalf("applied %s, want %s", st.Applied, c.model.applied)
	}
	c.checkRoutes(rt, h)
}

func (c *course) flush(rt *rapid.T, link string) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	i := rapid.IntRange(0, len(p.link.lanes)).Draw(rt, "lane")
	l := c.lane(p, i)
	c.clock++
	next, id := at(c.clock, int64(c.clock%3)), fmt.Sprintf("%s %d", link, c.clock)
	txn := l.Session().Begin()
	if c.stale(p) {
		if err := l.Move(c.ctx, txn, next); !errors.Is(err, lease.ErrFenced) {
			rt.Fatalf("a move of term %d in term %d: %v", p.link.Term(), c.model.term, err)
		}
		txn.Abort(c.ctx)
		return
	}
	err := l.Move(c.ctx, txn, next)
	if c.between(p, err) {
		return
	}
	must.Succeed(rt, err)
	must.Get(txn.Call(c.ctx, insert(id)))(rt)
	switch rapid.SampledFrom([]string{"commit", "commit", "abort", "lost", "unsent", "open"}).Draw(rt, "end") {
	case "commit":
		must.Get(txn.Commit(c.ctx, rapid.Bool().Draw(rt, "majority")))(rt)
		l.Moved(next)
		c.moved(i, next, id)
	case "abort":
		txn.Abort(c.ctx)
	case "lost":
		c.lose(txn, true)
		p.lost = true
		c.moved(i, next, id)
	case "unsent":
		c.lose(txn, false)
		p.lost = true
	case "open":
		p.lost = true
		p.late, p.lateTerm, p.lateLane, p.lateTo, p.lateData = txn, p.link.Term(), i, next, id
	}
}

// lose commits, and loses the reply; sent reports whether the commit reaches the server.
func (c *course) lose(txn *mongo.Txn, sent bool) {
	c.g.Intercept(func(mongo.Command) (error, bool) { return errCut, sent })
	_, _ = txn.Commit(c.ctx, false)
	c.g.Intercept(nil)
}

// commitLate commits the transaction that was left open.
func (c *course) commitLate(rt *rapid.T) {
	p := c.procs[rapid.IntRange(0, 1).Draw(rt, "process")]
	if p.late == nil {
		return
	}
	_, err := p.late.Commit(c.ctx, false)
	switch {
	case p.lateTerm != c.model.term:
		// An interrupted Acquire may not have fenced the lane: then the commit succeeds,
		// because the newer term has not begun.
		if err == nil && c.begunSince(p) {
			rt.Fatalf("a commit of term %d in term %d", p.lateTerm, c.model.term)
		}
		if err == nil {
			c.moved(p.lateLane, p.lateTo, p.lateData)
		}
	case err != nil:
		rt.Fatal(err)
	default:
		c.moved(p.lateLane, p.lateTo, p.lateData)
	}
	p.late = nil
}

// begunSince reports whether an Acquire has returned since p left its transaction open.
func (c *course) begunSince(p *process) bool {
	for _, o := range c.procs {
		if o.link != nil && o.link.Term() > p.lateTerm {
			return true
		}
	}
	return false
}

func (c *course) moved(i int, to Position, id string) {
	c.model.lanes[i] = to
	c.model.data[id] = true
	if to.Compare(c.model.begun[i]) >= 0 {
		c.model.begun[i] = Position{}
	}
}

func (c *course) advance(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	c.clock++
	err := p.link.Advance(c.ctx, progress(c.clock), positions(p.link), Source{})
	switch {
	case c.stale(p) || c.model.began != c.model.term:
		must.Fail(rt, err, lease.ErrFenced)
	case err != nil:
		rt.Fatal(err)
	default:
		c.model.applied = ot(c.clock)
	}
}

func (c *course) alone(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	i := rapid.IntRange(0, len(p.link.lanes)).Draw(rt, "lane")
	l := c.lane(p, i)
	c.clock++
	far := c.clock + rapid.Uint32Range(0, 4).Draw(rt, "far")
	next := at(far, AllOps)
	var lanes []Position
	if l == p.link.Barrier() {
		lanes = positions(p.link)
	}
	if err := l.Announce(c.ctx, next, lanes); c.stale(p) || err != nil {
		if c.between(p, err) {
			return
		}
		if !c.stale(p) || !errors.Is(err, lease.ErrFenced) {
			rt.Fatalf("begin alone in term %d of %d: %v", p.link.Term(), c.model.term, err)
		}
		return
	}
	if next.Compare(c.model.begun[i]) > 0 {
		c.model.begun[i] = next
	}
	if rapid.Bool().Draw(rt, "end") {
		must.Succeed(rt, l.Complete(c.ctx, next))
		c.clock = far
		c.moved(i, next, "")
		delete(c.model.data, "")
	} else {
		p.lost = true
	}
}

func (c *course) resize(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	c.clock++
	writers := rapid.IntRange(1, 4).Draw(rt, "writers")
	for i := range len(p.link.lanes) + 1 {
		if c.lane(p, i).Announced() != (Position{}) {
			return
		}
	}
	err := p.link.Resize(c.ctx, progress(c.clock), writers)
	if c.stale(p) || c.model.began != c.model.term {
		must.Fail(rt, err, lease.ErrFenced)
		return
	}
	must.Succeed(rt, err)
	p.lost = true
	c.model.applied = ot(c.clock)
	c.model.lanes = slices.Repeat([]Position{at(c.clock, AllOps)}, writers+1)
	c.model.begun = make([]Position, writers+1)
	c.model.routing.resized()
	for _, o := range c.procs {
		if o.late != nil && o.lateTerm != c.model.term {
			o.late = nil // its lane may have been removed
		}
	}
}

// check compares the data.
func (c *course) check(rt *rapid.T) {
	for _, id := range slices.Sorted(maps.Keys(c.model.data)) {
		if !has(c.ctx, rt, c.g, id) {
			rt.Fatalf("%s is not in the target", id)
		}
	}
	for _, p := range c.procs {
		if p.late != nil && has(c.ctx, rt, c.g, p.lateData) {
			rt.Fatalf("%s of an open transaction is in the target", p.lateData)
		}
	}
}
