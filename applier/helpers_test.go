package applier

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// simTarget is a Caller of a set's primary.
type simTarget struct {
	set *mongosim.Set
	mu  sync.Mutex
	to  *mongosim.Member // nil means the primary
	// instead, if set, receives all commands.
	instead mongo.Caller
	// before, if set, is called for each command: its sender receives the error, and sent
	// reports whether the server receives the command nevertheless.
	before func(cmd mongo.Command) (err error, sent bool)
}

func (g *simTarget) intercept(before func(cmd mongo.Command) (error, bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before = before
}

// direct sends everything to one member; nil means the primary.
func (g *simTarget) direct(to *mongosim.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = to
}

func (g *simTarget) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g.mu.Lock()
	before, instead := g.before, g.instead
	g.mu.Unlock()
	if instead != nil {
		return instead.Call(ctx, cmd)
	}
	if before != nil {
		if err, sent := before(cmd); err != nil {
			if sent {
				_, _ = g.send(context.WithoutCancel(ctx), cmd)
			}
			return nil, err
		}
	}
	return g.send(ctx, cmd)
}

// CallAll implements mongo.Pipeliner as a server behind one connection does: the commands
// after a failed one have been sent already.
func (g *simTarget) CallAll(ctx context.Context, cmds []mongo.Command, each func(int, bson.Raw) error) error {
	g.mu.Lock()
	instead, _ := g.instead.(mongo.Pipeliner)
	g.mu.Unlock()
	if instead != nil {
		return instead.CallAll(ctx, cmds, each)
	}
	var first error
	for i := range cmds {
		reply, err := g.Call(ctx, cmds[i])
		if _, lost := errors.AsType[*mongo.LostError](err); lost && first == nil {
			return err
		}
		if err == nil && first == nil {
			err = each(i, reply)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (g *simTarget) send(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	g.mu.Lock()
	to := g.to
	g.mu.Unlock()
	if to == nil {
		var err error
		if to, err = g.set.AwaitPrimary(ctx); err != nil {
			return nil, &mongo.LostError{Err: err}
		}
	}
	if reply, err := simcaller.Send(ctx, to, cmd); err == nil || ctx.Err() == nil {
		return reply, err
	}
	return nil, context.Cause(ctx) // as the driver; the server has an error of its own for that
}

// run sends a command that must succeed, without write errors.
func (g *simTarget) run(t fataler, db string, cmd bson.D) bson.Raw {
	t.Helper()
	body := must.Get(bson.Marshal(cmd))(t)
	reply, err := g.send(context.Background(), mongo.Command{DB: db, Body: body})
	if err == nil {
		var refused []mongo.WriteError
		if refused, err = mongo.WriteErrors(reply); len(refused) > 0 {
			err = &refused[0].Error
		}
	}
	if err != nil {
		t.Fatalf("run %v: %v", cmd, err)
	}
	return reply
}

// documents reads a collection in its natural order.
func (g *simTarget) documents(t fataler, ns oplog.Namespace) []bson.Raw {
	t.Helper()
	reply := g.run(t, ns.DB(), bson.D{{Key: "find", Value: ns.Collection()}, {Key: "batchSize", Value: 100_000}})
	docs, cursor, err := batchOf(reply)
	if err != nil || cursor != 0 {
		t.Fatalf("read %s: cursor %d, %v", ns, cursor, err)
	}
	return docs
}

// everything mirrors all namespaces under their own names.
type everything struct{}

func (everything) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	return ns, ns.DB() != "out"
}

func (e everything) Source(ns oplog.Namespace) (oplog.Namespace, bool) { return e.Target(ns) }

// commands is a Commands that creates and drops collections.
type commands struct {
	target  *simTarget
	catalog *catalog.Catalog
	applied []string
	// building says how long index builds take; during, if set, is called before their end.
	building time.Duration
	during   func()
}

func (c *commands) InScope(op *oplog.Op) (bool, error) { return op.NS.DB() != "out", nil }

func (c *commands) Apply(ctx context.Context, op *oplog.Op, again ddl.Mode) error {
	it := rawbson.NewIter(op.O)
	it.Next()
	coll, _ := it.Text()
	if op.Command == oplog.CommandCommitIndexBuild {
		return c.build(ctx, oplog.NewNamespace(op.NS.DB(), coll))
	}
	c.applied = append(c.applied, fmt.Sprintf("%s %s.%s %d", op.Command, op.NS.DB(), coll, again))
	body := mongo.WithMajority(op.O)
	_, err := c.target.Call(ctx, mongo.Command{DB: op.NS.DB(), Body: body})
	if e, ok := asServerError(err); ok && again != ddl.Once && (e.Code == 48 || e.Code == 26) {
		err = nil
	}
	if err != nil {
		return err
	}
	return c.catalog.Refresh(ctx, oplog.NewNamespace(op.NS.DB(), coll))
}

// build builds a unique index that every document satisfies. Nothing may be written to the
// collection meanwhile.
func (c *commands) build(ctx context.Context, ns oplog.Namespace) error {
	before, err := c.read(ctx, ns)
	if err != nil {
		return err
	}
	if err := mongo.Pause(ctx, 1+c.building); err != nil {
		return err
	}
	if c.during != nil {
		c.during()
	}
	index := bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}}
	body, err := bson.Marshal(bson.D{{Key: "createIndexes", Value: ns.Collection()}, {Key: "indexes", Value: bson.A{index}}})
	if err != nil {
		return err
	}
	if _, err := c.target.Call(ctx, mongo.Command{DB: ns.DB(), Body: mongo.WithMajority(body)}); err != nil {
		return cmp.Or(context.Cause(ctx), err) // an embedded member replies to an interrupted command
	}
	after, err := c.read(ctx, ns)
	if err == nil && !slices.Equal(texts(before), texts(after)) {
		err = fmt.Errorf("%s was written to while its index was built: %v, then %v", ns, texts(before), texts(after))
	}
	if err != nil {
		return err
	}
	return c.catalog.Refresh(ctx, ns)
}

func (c *commands) read(ctx context.Context, ns oplog.Namespace) ([]bson.Raw, error) {
	body, err := bson.Marshal(bson.D{{Key: "find", Value: ns.Collection()}, {Key: "batchSize", Value: 100_000}})
	if err != nil {
		return nil, err
	}
	reply, err := c.target.Call(ctx, mongo.Command{DB: ns.DB(), Body: body})
	if err != nil {
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	docs, _, err := batchOf(reply)
	return docs, err
}

func (c *commands) OpenBuilds(context.Context) ([]*ddl.HeadStart, error) { return nil, nil }

func (c *commands) HeadStart(context.Context, *oplog.Op) (*ddl.HeadStart, error) { return nil, nil }

func (c *commands) DeferBuild(_ context.Context, op *oplog.Op, index string) error {
	c.applied = append(c.applied, fmt.Sprintf("%s %s without %s", op.Command, op.NS.DB(), index))
	return nil
}

func (c *commands) DeferIndexes(context.Context, *oplog.Op, oplog.Namespace, func(bson.Raw) bool) ([]string, error) {
	return nil, nil
}

func (c *commands) EndCopy(context.Context, oplog.OpTime) error { return nil }

// rig is a link on an embedded target.
type rig struct {
	target  *simTarget
	store   *checkpoint.Store
	term    int64
	catalog *catalog.Catalog
	db      string
	link    string
}

var start = oplog.NewOpTime(1000, 1, 1)

func newRig(t testing.TB, writers int, opts mongosim.Options) *rig {
	t.Helper()
	return rigOn(t, &simTarget{set: mongosim.StartTest(t, opts)}, "link", writers)
}

func rigOn(t fataler, target *simTarget, link string, writers int) *rig {
	t.Helper()
	ctx := context.Background()
	r := &rig{target: target, db: "db", link: link}
	r.store = must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link}))(t)
	must.Succeed(t, r.store.Create(ctx, checkpoint.State{
		Writers: writers, Applied: start, FetchFrom: start, Source: checkpoint.Source{SetName: "rs0", RBID: 1},
	}))
	return r
}

// attempt is one run of an applier.
type attempt struct {
	*Applier
	link     *checkpoint.Link
	commands *commands
	// seen are the watermarks that were sent, released the bytes that were released.
	seen     []checkpoint.Applied
	released atomic.Int64
}

// begin acquires the lease and makes an applier.
func (r *rig) begin(ctx context.Context, set func(*Config)) (*attempt, error) {
	link, err := r.store.Acquire(ctx, r.term)
	if err != nil {
		return nil, err
	}
	r.term = link.Term()
	state := link.State()
	if r.catalog, err = catalog.Load(ctx, r.target, []string{r.db}); err != nil {
		return nil, err
	}
	a := &attempt{link: link, commands: &commands{target: r.target, catalog: r.catalog}}
	cfg := Config{
		Target: r.target, Checkpoint: link, Catalog: r.catalog, Scope: everything{}, Commands: a.commands,
		Plan:    plan.Options{Coalesce: true},
		Start:   checkpoint.Progress{Applied: state.Applied, FetchFrom: state.FetchFrom},
		Release: func(n int64) { a.released.Add(n) },
	}
	if set != nil {
		set(&cfg)
	}
	a.Applier, err = New(cfg)
	if j, ok := cfg.Brake.(*jerky); ok {
		j.applier = a.Applier
	}
	return a, err
}

var errAdvance = errors.New("advance")

// run applies batches and advances the checkpoint to each nth watermark.
func (a *attempt) run(ctx context.Context, batches []batch.Batch, nth int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, out := make(chan batch.Batch), make(chan checkpoint.Applied)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(in)
		for i := range batches {
			select {
			case in <- batches[i]:
			case <-ctx.Done():
				return
			}
		}
	})
	wg.Go(func() {
		for applied := range out {
			a.seen = append(a.seen, applied)
			if nth > 0 && len(a.seen)%nth == 0 {
				if err := a.link.Advance(ctx, applied.Progress, applied.Lanes, checkpoint.Source{SetName: "rs0", RBID: 1}); err != nil {
					cancel(fmt.Errorf("%w: %w", errAdvance, err))
				}
			}
		}
	})
	err := a.Run(ctx, in, out)
	if err != nil {
		cancel(errors.New("the applier has ended"))
	}
	wg.Wait()
	return err
}

// apply runs an applier that must drain.
func (r *rig) apply(t testing.TB, batches []batch.Batch, set func(*Config)) *attempt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := must.Get(r.begin(ctx, set))(t)
	must.Succeed(t, a.run(ctx, batches, 0))
	return a
}

// sourceLog is a log, divided into batches.
type sourceLog struct {
	t       fataler
	entries []logged
	// txns counts transaction numbers.
	txns int64
}

type logged struct {
	raw bson.Raw
	// last is set on the last entry of a batch, alone if it is the only one.
	last, alone bool
}

func newLog(t fataler) *sourceLog { return &sourceLog{t: t} }

func optimeOf(entry int) oplog.OpTime { return oplog.NewOpTime(start.TS.T+1+uint32(entry), 1, 1) }

// optime is the last entry's.
func (l *sourceLog) optime() oplog.OpTime { return optimeOf(len(l.entries) - 1) }

// add logs an entry.
func (l *sourceLog) add(fields bson.D) {
	l.t.Helper()
	at := optimeOf(len(l.entries))
	head := bson.D{
		{Key: "ts", Value: at.TS},
		{Key: "t", Value: at.Term},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(int64(at.TS.T) * 1000)},
	}
	l.entries = append(l.entries, logged{raw: must.Get(bson.Marshal(append(head, fields...)))(l.t)})
}

// end ends a batch.
func (l *sourceLog) end() {
	if n := len(l.entries); n > 0 {
		l.entries[n-1].last = true
	}
}

// alone logs an entry that must be processed individually.
func (l *sourceLog) alone(fields bson.D) {
	l.end()
	l.add(fields)
	l.end()
	l.entries[len(l.entries)-1].alone = true
}

// after returns the batches after an optime, newly built.
func (l *sourceLog) after(after oplog.OpTime) []batch.Batch {
	l.t.Helper()
	l.end()
	asm := must.Get(txn.New(txn.Config{}))(l.t)
	var cut []batch.Batch
	var b batch.Batch
	for i := range l.entries {
		e := must.Get(oplog.ParseEntry(l.entries[i].raw))(l.t)
		r := must.Get(asm.Add(&e))(l.t)
		if e.OpTime.Compare(after) <= 0 {
			continue
		}
		b.Entries++
		switch {
		case r.Outcome == txn.Committed:
			b.Items = append(b.Items, batch.Item{Entry: &e, Txn: r.Txn})
		case r.Outcome == txn.Pass && e.Kind != oplog.KindNoop:
			b.Items = append(b.Items, batch.Item{Entry: &e})
		}
		if l.entries[i].last {
			b.Individually, b.Last, b.Wall, b.FetchFrom, b.InDoubt, b.Bytes = l.entries[i].alone, e.OpTime, e.Wall, r.FetchFrom, r.InDoubt, 100
			cut = append(cut, b)
			b = batch.Batch{}
		}
	}
	return cut
}

func (l *sourceLog) batches() []batch.Batch { return l.after(start) }

func insertOp(ns string, doc bson.D) bson.D {
	return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: ns}, {Key: "o", Value: doc}}
}

// setOp is a delta that sets the field v.
func setOp(ns string, id, v any) bson.D {
	diff := bson.D{{Key: "u", Value: bson.D{{Key: "v", Value: v}}}}
	return bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: ns},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}},
	}
}

func deleteOp(ns string, id any) bson.D {
	return bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: ns}, {Key: "o", Value: bson.D{{Key: "_id", Value: id}}}}
}

func commandOp(db string, o bson.D) bson.D {
	return bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: db + ".$cmd"}, {Key: "o", Value: o}}
}

// transactionOp is a transaction in one entry.
func (l *sourceLog) transactionOp(ops ...bson.D) bson.D {
	l.txns++
	return bson.D{
		{Key: "op", Value: "c"},
		{Key: "ns", Value: "admin.$cmd"},
		{Key: "o", Value: bson.D{{Key: "applyOps", Value: ops}}},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte{7}, 16)}}}},
		{Key: "txnNumber", Value: l.txns},
		{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}},
	}
}

// groupOp is an applyOps that is not a transaction.
func groupOp(ops ...bson.D) bson.D {
	return commandOp("admin", bson.D{{Key: "applyOps", Value: ops}})
}

func doc(id, v any) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}} }

// texts converts documents to a form that is easy to compare.
func texts(docs []bson.Raw) []string {
	out := make([]string, len(docs))
	for i, d := range docs {
		out[i] = d.String()
	}
	return out
}

// Messages of events.
const (
	notAtomic     = "a transaction is applied in several"
	indexDeferred = "index that may refuse a document is deferred"
	indexBuilt    = "index built that had been left out"
)
