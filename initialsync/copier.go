package initialsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
)

// link is the part of *progress.Link that is used here.
type link interface {
	Copy() *checkpoint.Copy
	UpdateCopy(ctx context.Context, c checkpoint.Copy) error
	Copies(ctx context.Context) ([]progress.Collection, []progress.Range, error)
	DropCopies(ctx context.Context, below int64) error
	AddCollections(ctx context.Context, list []progress.Collection) error
}

// lane is the part of *progress.Lane that is used here. It is for one goroutine at a time.
type lane interface {
	clone.Lane
	SaveCollection(ctx context.Context, c *progress.Collection, ranges []progress.Range) error
}

// cloner is a *clone.Cloner.
type cloner interface {
	Newest(ctx context.Context, coll *progress.Collection) (int64, error)
	Split(ctx context.Context, coll *progress.Collection, to oplog.Namespace, since clone.Since) ([]progress.Range, error)
	Copy(ctx context.Context, lane clone.Lane, coll *progress.Collection, to oplog.Namespace,
		r progress.Range) (progress.Range, error)
}

// Copier makes the copy of a Link's Copy, or the rest of it.
type Copier struct {
	cfg    Config
	link   link
	lanes  []turns
	cloner cloner
	take   func(ctx context.Context) (*inventory.Inventory, error)
	// unchanged returns an error if the member is not what it was when the attempt began,
	// settled also waits until all that it has shown is majority-committed.
	unchanged, settled func(ctx context.Context) error
	// inserted returns the _ids that the oplog inserted into collections after Begin.
	inserted func(ctx context.Context, colls []oplog.UUID) (map[oplog.UUID]inventory.IDs, error)

	copy  checkpoint.Copy
	board *board
	// again serializes creating collections again.
	again sync.Mutex
	// commands are those created so far. Each is used by one goroutine at a time: the
	// workers of a step are numbered, and the steps that use them do not overlap.
	commands []Commands
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Copier, error) {
	cfg.setDefaults()
	faults := []error{cfg.validate()}
	if cfg.Checkpoint == nil {
		faults = append(faults, errors.New("initialsync: no checkpoint"))
	} else if cfg.Checkpoint.Copy() == nil {
		faults = append(faults, errNoCopy)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	lanes, link := make([]lane, cfg.Checkpoint.State().Writers), progress.Of(cfg.Checkpoint)
	for i := range lanes {
		lanes[i] = link.Lane(i)
	}
	c := newCopier(cfg, link, lanes)
	was := func() origin.Identity { return identityOf(&c.copy, cfg.Checkpoint.State().Source.ReplicaSetID) }
	c.unchanged = func(ctx context.Context) error { return origin.Check(ctx, cfg.Source, was()) }
	c.settled = func(ctx context.Context) error { return origin.Settled(ctx, cfg.Source, was()) }
	log := settledLog{cfg.Log, c.settled}
	c.take = func(ctx context.Context) (*inventory.Inventory, error) {
		return inventory.Take(ctx, inventory.Config{Source: cfg.Source, Scope: cfg.Scope, Log: log, Begin: c.copy.Begin})
	}
	c.inserted = func(ctx context.Context, colls []oplog.UUID) (map[oplog.UUID]inventory.IDs, error) {
		return inventory.Inserted(ctx, cfg.Source, log, c.copy.Begin, colls)
	}
	var err error
	c.cloner, err = clone.New(clone.Config{
		Source: cfg.Source, Target: cfg.Target, After: c.copy.Begin.TS,
		RangeBytes: cfg.RangeBytes, FlushDocs: cfg.FlushDocs, FlushBytes: cfg.FlushBytes, Memory: cfg.Memory,
		Unchanged: c.unchanged, NoHoles: cfg.NoHoles, Pacer: cfg.Pacer, Enter: cfg.Enter, Observer: cfg.Observer, Moved: c.board.moved,
	})
	return c, err
}

// settledLog is the log, which awaits an entry of the member only once the member knows it as majority-committed, for
// which there is a limit of time. Others are not read: those of a member that is cut off from its set may never come.
type settledLog struct {
	inventory.InsertLog
	settled func(ctx context.Context) error
}

// WaitFor implements inventory.Log.
func (l settledLog) WaitFor(ctx context.Context, ts bson.Timestamp) error {
	if err := l.settled(ctx); err != nil {
		return err
	}
	return l.InsertLog.WaitFor(ctx, ts)
}

// newCopier creates a Copier without cloner and take.
func newCopier(cfg Config, h link, lanes []lane) *Copier {
	c := &Copier{cfg: cfg, link: h, copy: *h.Copy(), board: newBoard(cfg.Registry)}
	for _, l := range lanes {
		c.lanes = append(c.lanes, turns{lane: l, turn: make(chan struct{}, 1)})
	}
	c.cfg.Workers = min(c.cfg.Workers, len(lanes))
	return c
}

var errNoCopy = errors.New("initialsync: the link does not begin with a copy")

// Run clears the target if that is not done yet, lists the source, creates views and
// collections, copies documents and builds indexes, each as far as it is not done. When
// it returns nil, everything is recorded and in the target, except the change to
// checkpoint.Replaying. It is called once.
func (c *Copier) Run(ctx context.Context) error {
	c.board.begin(time.Now())
	c.copy = *c.link.Copy()
	if c.copy.Phase != checkpoint.Copying {
		c.enter(StepDone)
		return nil
	}
	err := c.run(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("initialsync: %w", err)
	}
	return nil
}

func (c *Copier) run(ctx context.Context) error {
	if !c.copy.Cleared {
		if err := c.during(ctx, func() error { return c.clear(ctx) }); err != nil {
			return fmt.Errorf("clear the target: %w", err)
		}
	}
	if !c.copy.Listed {
		if err := c.list(ctx); err != nil {
			return err
		}
	}
	all, err := c.load(ctx)
	if err != nil {
		return fmt.Errorf("read the list of collections to copy: %w", err)
	}
	if err := c.create(ctx, all); err != nil {
		return err
	}
	if err := c.fill(ctx, all); err != nil {
		return err
	}
	c.enter(StepDone)
	return nil
}

// during runs work that is finished once it has begun, unless ctx is done.
func (c *Copier) during(ctx context.Context, work func() error) error {
	if c.cfg.Enter != nil {
		leave, err := c.cfg.Enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
	}
	return work()
}

// enter starts a step.
func (c *Copier) enter(step Step) {
	if c.board.enter(step, time.Now()) {
		c.cfg.Observer.Tell(StepChanged{Step: step})
	}
}

// worker returns the commands of worker i, which equip has created.
func (c *Copier) worker(i int) Commands { return c.commands[i] }

// equip creates commands for n workers.
func (c *Copier) equip(ctx context.Context, n int) error {
	for len(c.commands) < n {
		cmds, err := c.cfg.NewCommands(ctx)
		if err != nil {
			return fmt.Errorf("prepare commands for the target: %w", err)
		}
		c.commands = append(c.commands, cmds)
	}
	return nil
}

// turns is a lane that is used by one goroutine after another, in order of arrival.
type turns struct {
	lane lane
	turn chan struct{}
}

// with waits for its turn and runs work.
func (t *turns) with(ctx context.Context, work func(l lane) error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-t.turn }()
	return work(t.lane)
}

// save writes a collection's document, and adds ranges to it.
func (t *turns) save(ctx context.Context, coll *collection, ranges []progress.Range) error {
	err := t.with(ctx, func(l lane) error { return l.SaveCollection(ctx, &coll.doc, ranges) })
	if err != nil {
		return fmt.Errorf("write down that %s is %s: %w", coll.doc.NS, coll.doc.State, err)
	}
	return nil
}
