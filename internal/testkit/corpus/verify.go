package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
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

	groups  []memstore.Group // what takes effect, entry by entry
	offsets []int64          // where the entry of each group begins in the log, in bytes
	base    *memstore.Store  // before/
	want    memstore.State   // after/
	fuzzy   bool             // before/ was copied while writes went on
	judge   judge            // of what deltas are compiled to
	// bytesPerRound is about how much one round of applying parts again writes
	// and compares, in bytes of documents.
	bytesPerRound int64
	// trimming is true if the feature compatibility version changes in the log
	// to one in which capped collections are trimmed otherwise.
	trimming bool
}

// Verify applies a recording in every way that must result in its after/, and
// returns a report. It stops when ctx is done; the cause is then the report's
// Err.
func Verify(ctx context.Context, s *Scenario, options Options) Report {
	start := time.Now()
	p := proof{scenario: s, options: options, report: Report{Name: s.Name, Seed: options.Seed}}
	p.report.Err = p.run(ctx)
	p.report.Elapsed = time.Since(start)
	return p.report
}

// Moving reports whether before/ is a copy that was taken while writes went on, by
// applying the log to it.
func Moving(ctx context.Context, s *Scenario) (bool, error) {
	if s.Err != nil {
		return false, s.Err
	}
	if !s.hasBefore() {
		return false, nil
	}
	p := proof{scenario: s}
	if err := p.load(ctx); err != nil {
		return false, err
	}
	p.steady()
	return p.fuzzy, context.Cause(ctx)
}

// run returns the error that prevents the proof. Failures are in the report.
func (p *proof) run(ctx context.Context) error {
	if p.scenario.Err != nil {
		return p.scenario.Err
	}
	if err := p.load(ctx); err != nil {
		return err
	}
	steady := p.steady()
	defer func() {
		p.report.Deltas = p.judge.judged
		p.report.fail("compiled", p.judge.wrong)
	}()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	store, written := p.base.Clone(), p.judge.written
	err := p.apply(store, 0, len(p.groups), memstore.InitialSync)
	p.bytesPerRound = 2*(p.judge.written-written) + size(store)
	p.noteCollations(steady, store)
	if errors.Is(err, memstore.OplogOperationUnsupported) && !p.fuzzy {
		// A member restarts its initial sync in this case.
		p.report.NotReapplied = "the feature compatibility version changes in the log"
		return nil
	}
	differences := p.compare(store, err)
	p.report.fail("initial sync", differences)
	if len(differences) > 0 {
		return nil
	}
	return p.reapply(ctx, store)
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
	trims := p.scenario.trimsCapped()
	for at, err := range p.scenario.placed() {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		p.report.Entries++
		g, err := grouper.Add(at.entry)
		if err != nil {
			return &FileError{File: p.scenario.path(logFile), Offset: at.offset, OpTime: at.entry.OpTime, Err: err}
		}
		if g.Kind == txn.KindTransaction {
			p.report.Transactions++
		}
		if slices.ContainsFunc(g.Ops, func(op oplog.Op) bool { return op.Kind != oplog.KindNoop }) {
			p.groups = append(p.groups, g)
			p.offsets = append(p.offsets, at.offset)
		}
		p.trimming = p.trimming || slices.ContainsFunc(g.Ops, func(op oplog.Op) bool { return changesTrimming(&op, trims) })
	}
	return nil
}

// changesTrimming reports whether an operation sets a feature compatibility version
// in which capped collections are trimmed otherwise than trims says.
func changesTrimming(op *oplog.Op, trims bool) bool {
	return memstore.ChangesFCV(op) && setsVersion(op.O, trims)
}

// setsVersion looks for versions in an update, whatever its form.
func setsVersion(o bson.Raw, trimming bool) bool {
	it := rawbson.NewIter(o)
	for it.Next() {
		if inner, ok := it.Document(); ok && setsVersion(inner, trimming) {
			return true
		}
		version, ok := it.Text()
		if ok && version != "" && version[0] >= '0' && version[0] <= '9' && trims(version) != trimming {
			return true
		}
	}
	return false
}

// apply applies the groups from one to before another. An error says where its
// entry is.
func (p *proof) apply(store *memstore.Store, from, to int, mode memstore.Mode) error {
	for i := from; i < to; i++ {
		if err := store.ApplyGroup(&p.groups[i], mode); err != nil {
			return fmt.Errorf("%s at byte %d: %w", logFile, p.offsets[i], err)
		}
	}
	return nil
}

// size returns how large all documents are, in bytes.
func size(store *memstore.Store) int64 {
	var n int64
	for _, c := range store.Collections() {
		for doc := range c.All() {
			n += int64(len(doc))
		}
	}
	return n
}

// compare returns how a store differs from after/.
func (p *proof) compare(store *memstore.Store, err error) []string {
	if err != nil {
		return []string{err.Error()}
	}
	got := catalogThroughJSON(store.Snapshot())
	differences := memstore.Diff(p.want, got)
	if len(differences) == 0 || !p.trimming {
		return differences
	}
	p.report.note("capped collections may lack oldest documents: who trims them changes in the log, with the feature compatibility version")
	return memstore.Diff(trimmedAlike(p.want, got), got)
}

// trimmedAlike returns want with the documents of got where a capped collection
// of the two differs in how many of its oldest documents are gone.
func trimmedAlike(want, got memstore.State) memstore.State {
	alike := memstore.State{Collections: slices.Clone(want.Collections)}
	for i := range alike.Collections {
		w := &alike.Collections[i]
		at := slices.IndexFunc(got.Collections, func(c memstore.CollectionState) bool { return c.NS == w.NS })
		if !w.Capped || at < 0 {
			continue
		}
		g := got.Collections[at].Documents
		n := min(len(w.Documents), len(g))
		if slices.EqualFunc(w.Documents[len(w.Documents)-n:], g[len(g)-n:], func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
			w.Documents = g
		}
	}
	return alike
}

// noteCollations notes where _ids are compared otherwise than the server does.
func (p *proof) noteCollations(stores ...*memstore.Store) {
	all := map[oplog.Namespace]error{}
	for _, store := range stores {
		maps.Copy(all, store.Uncollated())
	}
	for _, ns := range slices.Sorted(maps.Keys(all)) {
		why := all[ns].Error()
		if c, ok := errors.AsType[*bsonorder.CollationError](all[ns]); ok {
			why = c.Field + ": " + c.What
		}
		p.report.note(fmt.Sprintf("_ids of %s compared without its collation: %s", ns, why))
	}
}
