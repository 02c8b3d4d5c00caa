package resync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The link of these tests mirrors the collections a, b and c. Its metadata is in an
// embedded set. The pipelines are fakes that record up to which entry each collection is
// in the target, and return an error for an entry that is not the next one.
var collections = []oplog.Namespace{"shop.a", "shop.b", "shop.c"}

func at(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 1) }

// target is a Caller for a set, with faults.
type target struct {
	simcaller.Caller

	// lags, if not nil, answers a command instead of the set, unless it returns nil.
	lags func(cmd mongo.Command) bson.Raw
}

// unhindered is in the context of commands without faults.
type unhindered struct{}

func startTarget(t *testing.T) *target {
	t.Helper()
	set, err := mongosim.Start(t.Context(), mongosim.Options{TTLInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	return &target{Caller: simcaller.Caller{Set: set}}
}

// Call implements mongo.Caller.
func (g *target) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Value(unhindered{}) != nil {
		return simcaller.Send(ctx, g.Set.Member(0), cmd)
	}
	if g.lags != nil {
		if reply := g.lags(cmd); reply != nil {
			return reply, nil
		}
	}
	return g.Caller.Call(ctx, cmd)
}

// world is a link with its target, seen from outside.
type world struct {
	t    *testing.T
	to   *target
	link string
	// by, if not nil, is what the next process sends its commands to, in place of to.
	by mongo.Caller
	// unable is the reason why the next process cannot copy.
	unable error
	// ping is the interval at which the next process pings, 0 for the default.
	ping time.Duration

	mu sync.Mutex
	// data has the entry up to which each collection is in the target.
	data map[oplog.Namespace]oplog.OpTime
	// begun counts how often the copy of each collection has started.
	begun map[oplog.Namespace]int
	// fails are the errors with which parts end; builds means that one that is to advance to an
	// entry waits for an index build.
	fails  map[oplog.Namespace]error
	builds bool
	events []event.Event
}

func newWorld(t *testing.T, to *target, link string) *world {
	t.Helper()
	w := &world{
		t: t, to: to, link: link, begun: map[oplog.Namespace]int{}, fails: map[oplog.Namespace]error{},
		data: map[oplog.Namespace]oplog.OpTime{},
	}
	for _, ns := range collections {
		w.data[ns] = at(100)
	}
	w.ok(w.store(link, "").Create(t.Context(), checkpoint.State{
		Writers: 1, Applied: at(100), FetchFrom: at(100), Source: checkpoint.Source{SetName: "rs"},
	}))
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) store(link, of string) *checkpoint.Store {
	w.t.Helper()
	s, err := checkpoint.New(checkpoint.Config{Target: cmp.Or[mongo.Caller](w.by, w.to), Link: link, Of: of})
	w.ok(err)
	return s
}

// asks returns the requests of the link.
func (w *world) asks() *request.Store { return request.New(w.store(w.link, "")) }

func (w *world) tell(e event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// apply moves a collection from one entry to another one.
func (w *world) apply(by string, ns oplog.Namespace, from, to oplog.OpTime) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.data[ns].Equal(from) {
		w.t.Errorf("%s applies (%s, %s] to %s, which is at %s", by, from, to, ns, w.data[ns])
	}
	w.data[ns] = to
}

// request returns the state of the request for a collection.
func (w *world) request(ns oplog.Namespace) request.Resync {
	w.t.Helper()
	requests, err := w.asks().Read(w.t.Context())
	if !request.Damaged(err) {
		w.ok(err)
	}
	i := slices.IndexFunc(requests.Resync, func(r request.Resync) bool { return r.NS == ns })
	if i < 0 {
		return request.Resync{}
	}
	return requests.Resync[i]
}

func (w *world) state() checkpoint.State {
	w.t.Helper()
	st, _, err := w.store(w.link, "").Load(w.t.Context())
	w.ok(err)
	return st
}

// process is one process that runs the link.
type process struct {
	*Manager
	w       *world
	store   *checkpoint.Store
	locks   *jobs.Locks
	term    int64
	at      Position
	end     context.CancelCauseFunc
	ctx     context.Context
	over    func() // ends the leadership
	mu      sync.Mutex
	runners map[oplog.Namespace]*runner
	leads   *checkpoint.Link
}

func (w *world) start() *process {
	w.t.Helper()
	names, err := scope.New(scope.Config{Include: []string{"shop.*"}, Exclude: []string{"shop.hidden"}})
	w.ok(err)
	p := &process{w: w, store: w.store(w.link, ""), runners: map[oplog.Namespace]*runner{}}
	p.ctx, p.end = context.WithCancelCause(w.t.Context())
	p.locks = jobs.New(jobs.Config{Job: "resync", Link: w.link, Locks: locks.Config{Store: mongostore.New(w.to, "replicator"), Ping: w.ping}})
	p.Manager = New(Config{
		Locks: p.locks, Link: w.link, Target: cmp.Or[mongo.Caller](w.by, w.to), Store: w.store(w.link, ""), Requests: w.asks(), Scope: names, Unable: w.unable,
		Acquire: p.acquire, Position: func() Position { return p.at }, Runner: p.runner, Observer: w.tell,
	})
	p.over = p.Lead(p.ctx)
	w.t.Cleanup(p.kill)
	return p
}

// kill ends the process at once.
func (p *process) kill() {
	p.end(errors.New("killed"))
	p.over()
}

func (p *process) acquire(ctx context.Context) (*checkpoint.Link, error) {
	link, err := p.store.Acquire(ctx, p.term)
	if err == nil {
		p.term, p.leads = link.Term(), link
		p.at.Applied = link.State().Applied
	}
	return link, err
}

// begin begins an attempt.
func (p *process) begin() (*checkpoint.Link, error) {
	link, err := p.acquire(p.ctx)
	if err == nil {
		err = p.Begin(p.ctx, link)
	}
	return link, err
}

// attempt runs an attempt that applies the oplog up to an entry.
func (p *process) attempt(to oplog.OpTime) error {
	link, err := p.begin()
	if err == nil && p.running["shop.a"] != nil {
		p.awaitRunner()
	}
	if err != nil || !to.After(link.State().Applied) {
		return err
	}
	from := link.State().Applied
	if err := advance(p.ctx, link, to); err != nil {
		return err
	}
	for _, ns := range collections {
		if _, in := p.Scope().Target(ns); in {
			p.w.apply("the link", ns, from, to)
		}
	}
	p.at.Applied = to
	return nil
}

func advance(ctx context.Context, link *checkpoint.Link, to oplog.OpTime) error {
	st := link.State()
	ctx = context.WithValue(ctx, unhindered{}, true)
	return link.Advance(ctx, checkpoint.Progress{Applied: to, FetchFrom: to}, st.Lanes, st.Source)
}

// runner returns the runner of a part.
func (p *process) runner(part Part) (Runner, error) {
	r := &runner{p: p, part: part, store: p.w.store(part.Link, p.w.link), begun: make(chan struct{}), fails: make(chan error, 1), under: p.leads}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runners[part.NS] = r
	return r, nil
}

// awaitRunner returns the runner of shop.a once it has begun.
func (p *process) awaitRunner() *runner {
	p.w.t.Helper()
	p.mu.Lock()
	r := p.runners["shop.a"]
	p.mu.Unlock()
	select {
	case <-r.begun:
	case <-time.After(time.Minute):
		p.w.t.Fatal("shop.a is not copied")
	}
	return r
}

// runner runs a part without a source: a new part is consistent at once, at the link's
// position.
type runner struct {
	p     *process
	part  Part
	store *checkpoint.Store
	begun chan struct{}
	// fails ends a run with an error.
	fails chan error
	link  *checkpoint.Link
	// applied is the entry that the part has applied.
	applied oplog.OpTime
	// under is the link under whose lease the part is created.
	under *checkpoint.Link

	// looked, if not nil, is called by Status.
	looked func()

	mu     sync.Mutex
	status Status
}

// Run implements Runner.
func (r *runner) Run(ctx, soft context.Context) error {
	begun := sync.OnceFunc(func() { close(r.begun) })
	defer begun()
	w := r.p.w
	ctx = context.WithValue(ctx, unhindered{}, true)
	_, found, err := r.store.Load(ctx)
	if err == nil && !found {
		st, _, _ := r.p.store.Load(ctx)
		err = r.under.CreatePart(ctx, r.store, r.part.NS, r.part.Asked, checkpoint.State{Writers: 1, Applied: st.Applied, FetchFrom: st.Applied, Source: st.Source})
		if errors.Is(err, lease.ErrSpent) || errors.Is(err, checkpoint.ErrNotLeftOut) {
			err = fmt.Errorf("%w: %w", ErrInterrupted, err)
		}
		if err == nil {
			w.mu.Lock()
			w.data[r.part.NS] = st.Applied
			w.begun[r.part.NS]++
			w.mu.Unlock()
		}
	}
	if err == nil {
		r.link, err = r.store.Acquire(ctx, 0)
	}
	if err != nil {
		return err
	}
	r.applied = r.link.State().Applied
	if !r.part.Until.IsNull() {
		if w.builds {
			return ErrInterrupted
		}
		return r.advance(ctx, r.part.Until)
	}
	r.show(Status{Text: "following", Applied: r.link.State().Applied})
	begun()
	w.mu.Lock()
	err = w.fails[r.part.NS]
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err := <-r.fails:
		return err
	case <-soft.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// advance applies the oplog up to an entry.
func (r *runner) advance(ctx context.Context, to oplog.OpTime) error {
	if err := advance(ctx, r.link, to); err != nil {
		return err
	}
	r.p.w.apply("the part", r.part.NS, r.applied, to)
	r.applied = to
	return nil
}

// catchUp applies the oplog up to an entry, and makes the part ready to be merged.
func (r *runner) catchUp(to oplog.OpTime) {
	r.p.w.t.Helper()
	if to.After(r.link.State().Applied) {
		r.p.w.ok(r.advance(r.p.ctx, to))
	}
	r.show(Status{Text: "steady", Consistent: true, Steady: true, Applied: to})
}

func (r *runner) show(s Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = s
}

// Status implements Runner.
func (r *runner) Status() Status {
	if r.looked != nil {
		r.looked()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}
