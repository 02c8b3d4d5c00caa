package applier

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// Scope decides which namespaces are mirrored, and under which names.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// Source is the inverse of Target.
	Source(target oplog.Namespace) (oplog.Namespace, bool)
}

// Collections caches the target's collections: *catalog.Catalog.
type Collections interface {
	// Get returns a collection of the target; false where it does not exist.
	Get(ctx context.Context, ns oplog.Namespace) (*catalog.Collection, bool, error)
	// Known returns all collections that were read, and the databases that were read
	// completely.
	Known() (colls []*catalog.Collection, dbs []string)
}

// Commands executes DDL: *ddl.Executor. Calls must not be concurrent, except those of
// InScope and HeadStart.
type Commands interface {
	// InScope reports whether op does anything on the target.
	InScope(op *oplog.Op) (bool, error)
	// Apply executes op. Its effects are majority-committed when it returns.
	Apply(ctx context.Context, op *oplog.Op, mode ddl.Mode) error
	// HeadStart prepares the build of a startIndexBuild that may run concurrently with all
	// other calls; nil if there is none.
	HeadStart(ctx context.Context, op *oplog.Op) (*ddl.HeadStart, error)
	// OpenBuilds returns those of earlier attempts that the log has not ended.
	OpenBuilds(ctx context.Context) ([]*ddl.HeadStart, error)
	// DeferBuild defers an index of op that Apply could not build on a copy
	// (*ddl.IndexError).
	DeferBuild(ctx context.Context, op *oplog.Op, index string) error
	// DeferIndexes drops those indexes of a collection of the target for which refuses
	// returns true, because they may refuse the document that op makes of a copy's, or have
	// refused one that the source has, and returns their names. EndCopy builds those of a copy again.
	// Several lanes may call it, one at a time for a collection, and concurrently with the other methods.
	DeferIndexes(ctx context.Context, op *oplog.Op, ns oplog.Namespace, refuses func(spec bson.Raw) bool) ([]string, error)
	// EndCopy builds the deferred indexes of a copy that is consistent as of at.
	EndCopy(ctx context.Context, at oplog.OpTime) error
}

// Config configures an Applier.
type Config struct {
	// Target runs commands on the target's primary. The applier only reads
	// through it; it writes through the sessions of Checkpoint.
	Target mongo.Caller
	// Checkpoint is the link under a lease, with its lanes. Its State has the number of
	// writers.
	Checkpoint *checkpoint.Link
	// Catalog, Scope and Commands are those of the link.
	Catalog  Collections
	Scope    Scope
	Commands Commands
	// MetaDB and Link say where documents are stored that are too large for the target
	// during initial sync: collection "oversized". An empty MetaDB means "replicator".
	MetaDB, Link string
	// Of is the link that Link is a part of, empty for none.
	Of string
	// Relaxed applies a source transaction as ordinary operations; otherwise it
	// reaches the target in one transaction where the target can take it.
	Relaxed bool
	// ReportDivergence continues after a divergence, which otherwise ends the run. It is recorded in the metadata:
	// see checkpoint.Diverged.
	ReportDivergence bool
	// CopiedUntil is the optime up to which operations may meet newer documents of a
	// copy. Null where the target is exact.
	CopiedUntil oplog.OpTime
	// Plan describes the capabilities of the target.
	Plan plan.Options
	// FlushDocs limits the documents that a writer changes in one transaction. From 2,000 on it may
	// change twice as many where its commands have few operations. Zero means 2,000.
	FlushDocs int
	// FlushBytes limits the bytes of operations in one transaction; a single operation or
	// source transaction may be larger. Zero means 8 MiB.
	FlushBytes int
	// CoalesceWindow limits the operations in one transaction: it is above FlushDocs
	// because several may change one document. Zero means 10,000.
	CoalesceWindow int
	// ShareOps is the number of operations after which the shares of collections are
	// compared, ShareRest for how many such comparisons a change of their lanes is not
	// followed by another one. Zero means 16,384, or 1,024 for each lane if that is more, and 16.
	ShareOps, ShareRest int
	// RetryFor is how long a flush is retried after a conflict. Zero means 30 seconds.
	RetryFor time.Duration
	// WindowBytes limits the bytes of operations that writers have and that are not
	// applied yet; one operation or transaction may be larger. Zero means 32 MiB.
	WindowBytes int64
	// IndexBuilds limits the index builds that run concurrently with the writers. Zero
	// means 2. It applies to all appliers with the same IndexSlots; nil means one of its own.
	IndexBuilds int
	IndexSlots  *IndexSlots
	// BuildWait is how long all lanes wait for a committed index build before only its
	// collection does. Zero means 100 ms.
	BuildWait time.Duration
	// KeptBytes limits the bytes of operations that are kept back until an index is built;
	// one operation or transaction may be larger. Zero means half of WindowBytes.
	KeptBytes int64
	// Leave, once it is closed, ends an attempt that waits for an index build with all lanes,
	// with ErrLeft, as if it had crashed. Nil means that it waits for the end of the build.
	Leave <-chan struct{}
	// LeaveLast, if not zero, is how long index builds are waited for once nothing else is left
	// to apply. Then Run ends as with Leave.
	LeaveLast time.Duration
	// Brake stops and slows down, as operators ask for. May be nil.
	Brake Brake
	// CutEvery is the time between two consistent cuts, at least. Zero means that cuts are
	// made for CutNow only, and none if that is nil, too.
	CutEvery time.Duration
	// CutNow asks for a cut as soon as possible.
	CutNow <-chan struct{}
	// OnCut is called with each cut once it is majority-committed, and at the start with the
	// newest one that an earlier run has made. It may be nil, and must not block.
	OnCut func(checkpoint.Cut)
	// Repairs are documents to be made the same as the source's. One that was received is
	// answered before Run returns. Nil means none.
	Repairs <-chan *Repair
	// Release is called with the Bytes of each batch once all of it is applied, from
	// several goroutines. It may be nil, and must not block.
	Release func(bytes int64)
	// Start is the checkpoint, the first value of Progress.
	Start checkpoint.Progress

	// OnFlush is called, from several goroutines, after each flush and command: with the
	// number of operations applied, the source's clock at the oldest of them, and the
	// local time of the acknowledgement. It may be nil, and must not block.
	OnFlush func(ops int, wall bson.DateTime, at time.Time)
	// Work receives the work of the applier.
	Work Work
	// Observer receives events, from several goroutines. May be nil.
	Observer event.Observer
	// Registry registers the metrics. May be nil.
	Registry prometheus.Registerer
}

const (
	defaultFlushDocs      = 2_000
	defaultFlushBytes     = 8 << 20
	defaultCoalesceWindow = 10_000
	defaultWindowBytes    = 32 << 20
	defaultRetryFor       = 30 * time.Second
	defaultIndexBuilds    = 2
	defaultShareOps       = 16_384
	defaultShareRest      = 16
	defaultBuildWait      = 100 * time.Millisecond
)

func (c *Config) setDefaults() {
	setDefault(&c.FlushDocs, defaultFlushDocs)
	setDefault(&c.FlushBytes, defaultFlushBytes)
	setDefault(&c.CoalesceWindow, defaultCoalesceWindow)
	setDefault(&c.WindowBytes, defaultWindowBytes)
	setDefault(&c.RetryFor, defaultRetryFor)
	setDefault(&c.IndexBuilds, defaultIndexBuilds)
	setDefault(&c.ShareRest, defaultShareRest)
	setDefault(&c.BuildWait, defaultBuildWait)
	setDefault(&c.KeptBytes, max(1, c.WindowBytes/2))
	setDefault(&c.MetaDB, "replicator")
	if c.IndexSlots == nil {
		c.IndexSlots = &IndexSlots{}
	}
	if c.OnCut == nil {
		c.OnCut = func(checkpoint.Cut) {}
	}
	if c.Release == nil {
		c.Release = func(int64) {}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *Config) validate() error {
	var faults []error
	for _, f := range []struct {
		is   bool
		what string
	}{
		{c.Target == nil, "no target"},
		{c.Catalog == nil, "no catalog"},
		{c.Scope == nil, "no scope"},
		{c.Commands == nil, "nobody to carry out commands"},
		{c.FlushDocs < 1, fmt.Sprintf("documents of a flush: %d", c.FlushDocs)},
		{c.FlushBytes < 1, fmt.Sprintf("bytes of a flush: %d", c.FlushBytes)},
		{c.CoalesceWindow < 1, fmt.Sprintf("operations to coalesce: %d", c.CoalesceWindow)},
		{c.WindowBytes < 1, fmt.Sprintf("bytes of the writers' window: %d", c.WindowBytes)},
		{c.IndexBuilds < 1, fmt.Sprintf("index builds at once: %d", c.IndexBuilds)},
		{c.CutEvery < 0, fmt.Sprintf("time between two cuts: %s", c.CutEvery)},
		{c.RetryFor < 0, fmt.Sprintf("time to try a flush again: %s", c.RetryFor)},
	} {
		if f.is {
			faults = append(faults, errors.New(f.what))
		}
	}
	return errors.Join(faults...)
}

// Applier applies batches through the lanes of a link.
type Applier struct {
	cfg     Config
	link    link
	metrics *metrics
	stats   stats
	tracker *tracker
	window  *window
	writers []*laneWriter
	barrier *writer
	cuts    cuts
	// learned is shared by the lanes: what they have learned from refusals of the target.
	learned learned
	met     met
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Applier, error) {
	if cfg.Checkpoint == nil {
		return nil, errors.New("set up the applier: no checkpoint")
	}
	return newApplier(cfg, realLink{cfg.Checkpoint})
}

func newApplier(cfg Config, h link) (*Applier, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("set up the applier: %w", err)
	}
	st := h.State()
	n := st.Writers
	if n < 1 {
		return nil, fmt.Errorf("set up the applier: %d writers", n)
	}
	setDefault(&cfg.ShareOps, shareOps(n))
	a := &Applier{cfg: cfg, link: h, metrics: newMetrics(cfg.Registry)}
	a.stats.meter = cfg.Work.Dispatcher
	a.cuts.wanted, a.cuts.made, a.cuts.confirmed = make(chan struct{}, 1), make(chan checkpoint.Cut, 1), make(chan struct{}, 1)
	a.window = newWindow(cfg.WindowBytes, a.metrics.window)
	a.writers = make([]*laneWriter, n)
	lanes := make([]checkpoint.Position, n)
	for i := range a.writers {
		a.writers[i] = newLaneWriter(a, i, h.Lane(i))
		lanes[i] = a.writers[i].lane.Position()
	}
	a.barrier = newWriter(a, "barrier", h.Barrier())
	a.barrier.verify = true
	a.tracker = newTracker(cfg.Start, lanes, cfg.Release)
	for _, k := range st.KeptBack {
		a.stats.waits(k.NS, k.Since.OpTime)
	}
	return a, nil
}

// Run applies batches from in until it is closed or ctx is done. It sends progress on
// out: only the newest state, whenever out is ready, and the last one before it returns
// nil. It closes out, and the transactions of all batches that it has received.
//
// If ctx is done Run does not return nil, because the sender may have closed in for that
// reason, with more to send.
func (a *Applier) Run(ctx context.Context, in <-chan batch.Batch, out chan<- checkpoint.Applied) error {
	if err := a.run(ctx, in, out); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (a *Applier) run(ctx context.Context, in <-chan batch.Batch, out chan<- checkpoint.Applied) error {
	defer close(out)
	defer a.metrics.window.Set(0) // also of lanes that have stopped where they were
	defer a.tracker.abandon()
	if err := a.loadOversized(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for i, w := range a.writers {
		g.Go(func() error {
			if err := w.run(ctx); err != nil {
				return within(ctx, "writer "+strconv.Itoa(i), err)
			}
			return nil
		})
	}
	g.Go(func() error { return a.tracker.publishLoop(ctx, out) })
	g.Go(func() error { return a.confirmLoop(ctx) })
	g.Go(func() error { return newDispatcher(a).run(ctx, in) })
	return g.Wait()
}

// within prefixes an error with the name of its goroutine, unless the error is only the
// reason for which all of them were cancelled.
func within(ctx context.Context, who string, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return cause
	}
	return fmt.Errorf("%s: %w", who, err)
}

// link is the part of *checkpoint.Link that the applier uses.
type link interface {
	State() checkpoint.State
	Lane(i int) lane
	Barrier() lane
	Verify(ctx context.Context, txn *mongo.Txn, lanes []checkpoint.Position) error
	Routes(ctx context.Context) (checkpoint.Rerouting, error)
	RaiseRouting(ctx context.Context, routing int) error
	KeepBack(ctx context.Context, list []checkpoint.KeptBack) error
	Gaps() checkpoint.Gaps
	OpenCuts(ctx context.Context) ([]checkpoint.Cut, error)
	Confirm(ctx context.Context, c checkpoint.Cut) (bool, error)
	Within(ctx context.Context, work func(txn mongo.Caller) error) error
}

// lane is a *checkpoint.Lane.
type lane interface {
	Session() *mongo.Session
	Position() checkpoint.Position
	Announced() checkpoint.Position
	Stay(ctx context.Context, txn *mongo.Txn) error
	Move(ctx context.Context, txn *mongo.Txn, next checkpoint.Position) error
	MoveWith(ctx context.Context, txn *mongo.Txn, next checkpoint.Position, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error
	Moved(next checkpoint.Position)
	Announce(ctx context.Context, next checkpoint.Position, lanes []checkpoint.Position) error
	Complete(ctx context.Context, next checkpoint.Position) error
	Reroute(ctx context.Context, at checkpoint.Position, lanes []checkpoint.Position, change checkpoint.Rerouting) error
	Cut(ctx context.Context, at oplog.OpTime, wall int64, lanes []checkpoint.Position) (checkpoint.Cut, error)
}

type realLink struct{ *checkpoint.Link }

// Lane returns a lane of the link.
func (h realLink) Lane(i int) lane { return h.Link.Lane(i) }

// Barrier returns the lane of the link's barrier.
func (h realLink) Barrier() lane { return h.Link.Barrier() }

// Check returns the error with which Run would end for an operation on a document that is mirrored, as far as the
// operation alone shows it. The target may still refuse what it accepts.
func Check(op *oplog.Op) error { return plan.Check(op) }
