package ddl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Scope decides which namespaces are mirrored, and under which names.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored. Different namespaces
	// go to different ones.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// Source is the inverse of Target.
	Source(target oplog.Namespace) (oplog.Namespace, bool)
	// TargetDBs returns all databases that collections of a database go to.
	TargetDBs(db string) []string
}

// UniqueIndexes selects how unique indexes are built.
type UniqueIndexes uint8

const (
	// Relaxed builds them without their uniqueness, and keeps the whole spec in
	// the metadata until cutover.
	Relaxed UniqueIndexes = iota + 1
	// Serialized builds them as they are, unless on a copy; their collections are
	// Ordered.
	Serialized
)

// Config configures an Executor.
type Config struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// Fence is checked before each command that changes the target.
	Fence Fence
	// Late, if set, is called with each command that was late, before Apply returns.
	// Its ctx outlives that of Apply for some seconds.
	Late func(ctx context.Context, e *LateError)
	// Catalog is the cache of the target's collections. The executor refreshes it.
	Catalog *catalog.Catalog
	Scope   Scope
	// Names maps the namespaces that views read, Scope by default: it also includes the
	// collections that are left out for a resync.
	Names Scope
	// MetaDB and Link say where deferred specs are stored: collection "deferred". An
	// empty MetaDB means "replicator".
	MetaDB, Link string
	// Own is the link that is applied, Link by default: during a resync a collection has
	// a link of its own.
	Own string
	// UniqueIndexes is Relaxed by default.
	UniqueIndexes UniqueIndexes
	// Placed says of a target under Copied that its collections have exactly the names
	// that the log expects; only their documents, options and indexes, and all views, may
	// be newer. A missing collection is one that the source had dropped before it could
	// be copied: the log drops it too.
	Placed bool
	// Copier says that the caller makes a copy, and itself leaves out views that the target refuses: Apply returns the refusal.
	Copier bool
	// Shared says that other executors concurrently change other collections in the same
	// databases of the target: whatever belongs to a whole database is left unchanged.
	Shared bool
	// Observer receives events; nil is fine.
	Observer event.Observer
}

func (c *Config) setDefaults() {
	if c.MetaDB == "" {
		c.MetaDB = "replicator"
	}
	if c.Names == nil {
		c.Names = c.Scope
	}
	if c.Own == "" {
		c.Own = c.Link
	}
	if c.UniqueIndexes == 0 {
		c.UniqueIndexes = Relaxed
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Target == nil {
		faults = append(faults, errors.New("ddl: no target"))
	}
	if c.Fence == nil {
		faults = append(faults, errors.New("ddl: no fence"))
	}
	if c.Catalog == nil {
		faults = append(faults, errors.New("ddl: no catalog"))
	}
	if c.Scope == nil {
		faults = append(faults, errors.New("ddl: no scope"))
	}
	if c.Link == "" {
		faults = append(faults, errors.New("ddl: the link has no name"))
	}
	if c.UniqueIndexes != Relaxed && c.UniqueIndexes != Serialized {
		faults = append(faults, fmt.Errorf("ddl: unknown policy %d for unique indexes", c.UniqueIndexes))
	}
	return errors.Join(faults...)
}

// Executor executes DDL, one operation at a time. It is for one goroutine.
type Executor struct {
	cfg Config
	// gate is the only way to change the target; reader only reads it.
	gate   *gate
	reader readOnly
	// made are the target's UUIDs of collections that the log created while it met a
	// copy: the log refers to these, whatever else was copied.
	made map[oplog.UUID]bool
	// missing are the new names of renames for which a copy had neither name; nil until they
	// are read.
	missing map[oplog.Namespace]oplog.OpTime
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Executor, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g, r := &gate{target: cfg.Target, fence: cfg.Fence}, readOnly{cfg.Target}
	cfg.Target, cfg.Fence = nil, nil // Nothing bypasses the gate.
	return &Executor{cfg: cfg, gate: g, reader: r, made: map[oplog.UUID]bool{}}, nil
}

// Mode says which earlier effects an operation may meet.
type Mode uint8

const (
	// Once says that the target is exactly as the log left it.
	Once Mode = iota + 1
	// Maybe says that the operation may have been executed before, as a whole or in part;
	// nothing after it has been.
	Maybe
	// Copied says that the target is a copy taken during writes. The operation may have
	// been executed before as well.
	Copied
)

// String returns the name.
func (a Mode) String() string {
	switch a {
	case Once:
		return "once"
	case Maybe:
		return "maybe"
	case Copied:
		return "copied"
	}
	return fmt.Sprintf("Mode(%d)", uint8(a))
}

// InScope reports whether op does anything on the target.
func (e *Executor) InScope(op *oplog.Op) (bool, error) {
	if !op.IsDDL() {
		return false, nil
	}
	if op.Kind.IsCRUD() {
		ns, err := viewName(op)
		if err != nil {
			//nolint:nilerr // It is announced where it is carried out.
			return len(e.cfg.Scope.TargetDBs(op.NS.DB())) > 0, nil
		}
		_, in := e.cfg.Scope.Target(ns)
		return in, nil
	}
	switch op.Command {
	case oplog.CommandApplyOps, oplog.CommandCommitTransaction, oplog.CommandAbortTransaction,
		oplog.CommandStartIndexBuild, oplog.CommandDBCheck:
		return false, nil
	case oplog.CommandDropDatabase:
		return len(e.cfg.Scope.TargetDBs(op.NS.DB())) > 0, nil
	default:
	}
	ns, to, err := op.Target()
	if err != nil {
		return false, err
	}
	switch {
	case ns.DB() == "admin":
		// The collections of users and roles are the server's: it makes their indexes, and drops and renames none of them.
		_, in := e.target(ns)
		return in && op.Command == oplog.CommandCreate, nil
	case op.Command == oplog.CommandCreate && ns.IsSystemViews():
		return false, nil // the target creates its own with the first view
	}
	_, in := e.target(ns)
	if to != "" && !in {
		_, in = e.target(to)
	}
	return in, nil
}

// target returns where a namespace goes. The buckets of a time-series collection go with
// it.
func (e *Executor) target(ns oplog.Namespace) (oplog.Namespace, bool) {
	return targetIn(e.cfg.Scope, ns)
}

func targetIn(scope Scope, ns oplog.Namespace) (oplog.Namespace, bool) {
	if ns.IsBuckets() {
		to, in := scope.Target(ns.Series())
		return to.Buckets(), in
	}
	to, in := scope.Target(ns)
	return to.Clone(), in
}

// step executes one operation.
type step struct {
	*Executor
	op   *oplog.Op
	mode Mode
	// limit is how long the target may work on a command, soon how long after the lease
	// check it may be sent.
	limit, soon time.Duration
}

func (e *Executor) step(op *oplog.Op, mode Mode) *step {
	return &step{Executor: e, op: op, mode: mode, limit: endWithin, soon: sendWithin}
}

// Apply executes one command (not applyOps, commitTransaction or abortTransaction) or one
// write to a system.views. Its effects are majority-committed on the target when it
// returns. Errors: *oplog.EntryError for an operation that cannot be mirrored,
// *DivergedError for a target that differs from the log, *ResyncError for a collection
// that has to be copied, *UniqueError for a unique index that cannot be built, *OptionError for
// options of a collection that the target does not accept, *NameError for a name, and the target's.
func (e *Executor) Apply(ctx context.Context, op *oplog.Op, mode Mode) error {
	if mode != Once && mode != Maybe && mode != Copied {
		return fmt.Errorf("ddl: apply %s: unknown mode %d", op.OpTime, mode)
	}
	in, err := e.InScope(op)
	if err != nil {
		return err
	}
	if !in {
		return nil
	}
	s := e.step(op, mode)
	ns, err := s.applied(ctx)
	if err != nil {
		return s.wrap(ns, err)
	}
	s.log(levelOf(mode), "command applied", slog.String(keyCommand, s.name()), slog.String(keyNS, string(ns)))
	return nil
}

// applied calls apply until the target no longer contradicts the catalog.
func (s *step) applied(ctx context.Context) (oplog.Namespace, error) {
	ns, err := s.apply(ctx)
	for looks := 0; err != nil; {
		switch {
		case expired(err):
			// It may have been executed nevertheless, which only a read shows, once the
			// effect is majority-committed.
			s.limit = min(2*s.limit, endAtLast)
			s.logWaiting(err)
			s.mode = max(s.mode, Maybe)
			if err = mongo.Pause(ctx, lookPause); err == nil {
				err = s.within(ctx)
			}
		case !contradicts(err):
			return ns, err
		case s.mode == Once || looks == maxLooks:
			// If another process has the lease by now, it has made the change.
			if lost := s.gate.fence.Check(ctx); lost != nil {
				err = lost
			}
			return ns, err
		default:
			// A command of an earlier attempt may take effect between the lookup and the
			// command; another lookup shows it.
			looks++
			err = nil
		}
		if err == nil {
			err = s.lookAgain(ctx)
		}
		if err != nil {
			return ns, err
		}
		ns, err = s.apply(ctx)
	}
	return ns, nil
}

// apply returns the namespace of the target that the operation concerned, as far as that
// is known.
func (s *step) apply(ctx context.Context) (oplog.Namespace, error) {
	if s.op.Kind.IsCRUD() {
		return s.view(ctx)
	}
	switch s.op.Command {
	case oplog.CommandCreate:
		return s.create(ctx)
	case oplog.CommandCreateIndexes, oplog.CommandCommitIndexBuild:
		return s.createIndexes(ctx)
	case oplog.CommandAbortIndexBuild:
		return s.abortBuild(ctx)
	case oplog.CommandDropIndexes:
		return s.dropIndexes(ctx)
	case oplog.CommandCollMod:
		return s.collMod(ctx)
	case oplog.CommandDrop:
		return s.drop(ctx)
	case oplog.CommandDropDatabase:
		return s.dropDatabase(ctx)
	case oplog.CommandRenameCollection:
		return s.rename(ctx)
	case oplog.CommandEmptyCapped:
		return s.emptyCapped(ctx)
	case oplog.CommandImportCollection:
		return s.imported()
	default:
		return s.noRule()
	}
}

// imported returns the error for a collection that was imported.
func (s *step) imported() (oplog.Namespace, error) {
	ns, _, err := s.op.Target()
	if err != nil {
		return "", err
	}
	return ns, s.resync(ns, "it was imported as files, which are not in the oplog")
}

// noRule returns the error for a command that is not known here.
func (s *step) noRule() (oplog.Namespace, error) {
	return s.op.NS, s.op.Fault("o", fmt.Errorf("%w: no rule for %s", oplog.ErrUnsupported, s.name()))
}

// name returns the operation's name in messages.
func (s *step) name() string {
	if s.op.Kind == oplog.KindCommand {
		return s.op.Command.String()
	}
	return s.op.Kind.String() + " of a view"
}

// wrap adds the attempted operation to an error that does not name it. If catalog and
// target disagree, something else has changed the target.
func (s *step) wrap(ns oplog.Namespace, err error) error {
	switch {
	case isTyped(err):
		return err
	case contradicts(err):
		return s.diverged(ns, "%v", err)
	case says(err, servererr.IsNameRefused):
		return &NameError{OpTime: s.op.OpTime, Name: s.name(), NS: ns, Err: err}
	case s.hasOptions() && says(err, servererr.AreOptionsRefused):
		return &OptionError{OpTime: s.op.OpTime, Name: s.name(), NS: ns, Err: err}
	case ns == "":
		return fmt.Errorf("ddl: %s of %s: %w", s.name(), s.op.OpTime, err)
	}
	return fmt.Errorf("ddl: %s %s of %s: %w", s.name(), ns, s.op.OpTime, err)
}
