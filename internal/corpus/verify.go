package corpus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oplogrep/replicator/internal/memstore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Options are how thorough the proof is.
type Options struct {
	// Seed is for the sample of parts that are applied again.
	Seed uint64
	// Rounds is the most rounds of applying parts again, for a recording that
	// is too large to try all. Zero means 200, fewer for a long log.
	Rounds int
}

// proof is one recording under proof.
type proof struct {
	scenario *Scenario
	options  Options
	report   Report

	groups []memstore.Group // what takes effect, entry by entry
	base   *memstore.Store  // before/
	want   memstore.State   // after/
	fuzzy  bool             // before/ was copied while writes went on
	judge  judge            // of what deltas are compiled to
}

// Verify applies a recording in every way that must give its after/, and says
// what came out. It stops when ctx is done; the cause is the report's Err then.
func Verify(ctx context.Context, s *Scenario, options Options) Report {
	start := time.Now()
	p := proof{scenario: s, options: options, report: Report{Name: s.Name, Seed: options.Seed}}
	p.report.Err = p.run(ctx)
	p.report.Elapsed = time.Since(start)
	return p.report
}

// run returns what keeps the proof from being made. What it disproves is in the
// report.
func (p *proof) run(ctx context.Context) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	p.judge.on = true
	steady := p.steady()
	if p.fuzzy {
		p.report.note("before/ is a moving copy: initial sync only")
	} else {
		p.report.fail("steady", steady)
		p.report.fail("compiled for the pre-image", p.judge.wrongOnPreImage)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	store := p.base.Clone()
	err := applyAll(store, p.groups, memstore.InitialSync)
	if errors.Is(err, memstore.OplogOperationUnsupported) && !p.fuzzy {
		// A member that meets this starts its copy again.
		p.report.NotReapplied = "the feature compatibility version changes in the log"
		return nil
	}
	differences := p.compare(store, err)
	p.report.fail("initial sync", differences)
	if len(differences) == 0 {
		if err := p.reapply(ctx, store); err != nil {
			return err
		}
	}
	p.report.Deltas = p.judge.judged
	p.report.fail("compiled", p.judge.wrong)
	return nil
}

// load reads the whole recording.
func (p *proof) load(ctx context.Context) error {
	s := p.scenario
	before, err := s.Before()
	if err != nil {
		return err
	}
	if p.want, err = s.After(); err != nil {
		return err
	}
	p.base, err = memstore.Load(before, memstore.Config{TrimCapped: s.trimsCapped(), OnUpdate: p.judge.update})
	if err != nil {
		return fileError(s.path("before"), fmt.Errorf("%w: %w", ErrCorrupt, err))
	}
	return p.group(ctx)
}

// group reads the log and puts transactions together.
func (p *proof) group(ctx context.Context) (err error) {
	grouper, err := memstore.NewGrouper(txn.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, grouper.Close()) }()
	for e, err := range p.scenario.Oplog() {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		p.report.Entries++
		g, err := grouper.Add(e)
		if err != nil {
			return &FileError{File: p.scenario.path("oplog.bson"), Offset: -1, OpTime: e.OpTime, Err: err}
		}
		if g.Kind == txn.KindTransaction {
			p.report.Transactions++
		}
		if slices.ContainsFunc(g.Ops, func(op oplog.Op) bool { return op.Kind != oplog.KindNoop }) {
			p.groups = append(p.groups, g)
		}
	}
	return nil
}

func applyAll(store *memstore.Store, groups []memstore.Group, mode memstore.Mode) error {
	for i := range groups {
		if err := store.ApplyGroup(&groups[i], mode); err != nil {
			return err
		}
	}
	return nil
}

// compare says how a store differs from after/.
func (p *proof) compare(store *memstore.Store, err error) []string {
	if err != nil {
		return []string{err.Error()}
	}
	return memstore.Diff(p.want, catalogThroughJSON(store.Snapshot()))
}

// steady applies the log as a member in steady state does. It also finds out
// whether before/ is what the log was written on, or a copy that was taken while
// writes went on: then the log meets documents and collections that it makes
// itself, or misses what it changes.
func (p *proof) steady() []string {
	store := p.base.Clone()
	err := applyAll(store, p.groups, memstore.Steady)
	if len(p.base.Collections()) > 0 {
		n := store.Counters()
		p.fuzzy = n.InsertOnExistingDoc > 0 || n.UpdateOnMissingDoc > 0 || n.CreateOnExisting > 0 ||
			errors.Is(err, memstore.NamespaceNotFound) || errors.Is(err, memstore.DuplicateKey)
	}
	if n := store.Counters(); !p.fuzzy && n != (memstore.Counters{DeleteWasEmpty: n.DeleteWasEmpty}) {
		// Not wrong, but no recording so far has needed it.
		p.report.note(fmt.Sprintf("tolerated: %+v", n))
	}
	return p.compare(store, err)
}
