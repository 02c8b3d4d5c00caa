package ddl

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// HeadStart builds indexes on the target while the source builds them too: from the log's
// startIndexBuild on, concurrently with writes to the collection. It changes only when the
// work is done, not its result: the log's commitIndexBuild builds whatever is missing then,
// and its abortIndexBuild drops whatever there is.
type HeadStart struct {
	// Build is the build's UUID in the log, NS the collection on the target; Indexes are the
	// names of the indexes.
	Build   oplog.UUID
	NS      oplog.Namespace
	Indexes []string

	// step is for Run, other for Interrupt.
	step, other *step
	coll        *catalog.Collection
	specs       []*DeferredSpec
}

// HeadStart prepares the build of a startIndexBuild, as far as its indexes may exist before
// the log commits them, and records it: see OpenBuilds. It returns nil if there is none. The
// result does not refer to op.
func (e *Executor) HeadStart(ctx context.Context, op *oplog.Op) (*HeadStart, error) {
	entry, err := op.IndexBuild()
	if err != nil {
		return nil, err
	}
	ns, in := e.target(entry.NS)
	if !in || entry.NS.DB() == "admin" {
		return nil, nil
	}
	s := e.separate(op)
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil {
		return nil, s.wrap(ns, err)
	}
	if !exists || coll.Type != catalog.TypeCollection {
		return nil, nil // its commit reports that
	}
	b := &openBuild{build: entry.Build, ns: ns, uuid: coll.UUID, at: op.OpTime}
	for _, doc := range entry.Specs {
		if startsEarly(doc) {
			b.specs = append(b.specs, split(doc).without("ns", "dropDups").document())
		}
	}
	if len(b.specs) == 0 {
		return nil, nil
	}
	present, err := catalog.Indexes(ctx, s.reader, ns)
	if err == nil {
		// What exists is not of this build, and is not to be dropped by its abort.
		b.specs = slices.DeleteFunc(b.specs, func(spec bson.Raw) bool { return hasIndex(present, textOf(spec, "name")) })
		if len(b.specs) == 0 {
			return nil, nil
		}
		err = s.noteBuild(ctx, b)
	}
	if err != nil {
		return nil, s.wrap(ns, err)
	}
	return e.headStart(b, coll), nil
}

// headStart prepares a recorded build.
func (e *Executor) headStart(b *openBuild, coll *catalog.Collection) *HeadStart {
	op := &oplog.Op{Kind: oplog.KindCommand, Command: oplog.CommandStartIndexBuild, OpTime: b.at}
	h := &HeadStart{Build: b.build, NS: b.ns, step: e.separate(op), other: e.separate(op), coll: coll}
	for _, spec := range b.specs {
		name := strings.Clone(textOf(spec, "name"))
		h.Indexes = append(h.Indexes, name)
		h.specs = append(h.specs, &DeferredSpec{NS: b.ns, UUID: b.uuid, Index: name, Fields: h.step.deferredOf(&DeferredSpec{}, split(spec)), Spec: spec})
	}
	return h
}

// separate returns a step that can be used concurrently with the executor: with a gate of
// its own.
func (e *Executor) separate(op *oplog.Op) *step {
	own := *e
	own.gate = &gate{target: e.gate.target, fence: e.gate.fence}
	return own.step(&oplog.Op{Kind: op.Kind, Command: op.Command, OpTime: op.OpTime}, Maybe)
}

// startsEarly reports whether an index may exist on the target before the source commits it:
// it accepts every document, and has no uniqueness. While the source builds an index, it
// accepts documents that the finished index would refuse; they only have to be gone by the
// commit. And a unique index that is built without its uniqueness may equal another one,
// which the order of the commits then decides about.
func startsEarly(spec bson.Raw) bool {
	f := split(spec)
	return !f.truth("unique") && !f.truth("prepareUnique") && !MayRefuse(servererr.AnyKey, spec)
}

// Run builds the indexes. Its error has no consequence but that the commit has to build them.
// It is sent under the lease, as every command, and no more once stopped is done. Neither ctx
// nor stopped ends a build that the target has started.
func (h *HeadStart) Run(ctx, stopped context.Context) error {
	// A build that cannot be interrupted could not be aborted while the target makes it wait.
	if err := h.step.kill(ctx, h.step.buildSession(h.Build, "none")); err != nil {
		return err
	}
	d := h.step.creation(h.coll, h.specs)
	d.session = h.step.buildSession(h.Build)
	alone := false
	for tries := h.step.retry(mayContinue).Start(); ; {
		if stopped.Err() != nil {
			return context.Cause(stopped)
		}
		_, err := h.step.run(ctx, &d)
		if err == nil {
			return nil
		}
		if says(err, servererr.IsQuorumUnsatisfiable) && !alone {
			alone = true
			d.readyAlone()
			continue
		}
		if err := tries.Wait(stopped, err); err != nil {
			return err
		}
	}
}

// mayContinue reports whether a head start is sent again: after anything that passes, except
// if something has ended the build, as an operator may.
func mayContinue(err error) bool {
	k := servererr.Classify(err)
	return mayBuild(err) || k == servererr.NotPrimary || k == servererr.Leaving || k == servererr.Lost
}

// Interrupt ends the command of Run on the target, where it may be waiting for other builds.
// The build may continue. It may be called concurrently with Run.
func (h *HeadStart) Interrupt(ctx context.Context) error {
	return h.other.endBuild(ctx, h.Build)
}

// buildSession returns the session of the head start of a build. Any process can compute it.
func (s *step) buildSession(build oplog.UUID, more ...string) bson.Raw {
	return mongo.SessionID(append([]string{"index build", s.cfg.MetaDB, s.cfg.Link, string(build[:])}, more...)...)
}

// kill interrupts the commands of a session that the target's primary executes, or makes
// wait (kill_sessions_common.cpp). It needs no privilege: the session is of the same user.
func (s *step) kill(ctx context.Context, session bson.Raw) error {
	list := bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(session)).Build()
	body := bson.Raw(bsoncore.NewDocumentBuilder().AppendArray("killSessions", list).Build())
	err := s.retry(busy).Do(ctx, func() error {
		_, err := s.sendNow(ctx, "admin", body)
		return err
	})
	if err != nil {
		return fmt.Errorf("interrupt an index build: %w", err)
	}
	return nil
}

// endBuild interrupts the head start of a build, whichever process has sent it.
func (s *step) endBuild(ctx context.Context, build oplog.UUID) error {
	err := s.kill(ctx, s.buildSession(build))
	if servererr.IsNotOffered(err) {
		return nil // then none was sent
	}
	return err
}

// abortBuild removes the indexes of a build that the source has aborted, as far as it had a
// head start: also one of an earlier attempt, which the target may still be building, or not
// even have begun to build.
func (s *step) abortBuild(ctx context.Context) (oplog.Namespace, error) {
	entry, err := s.op.IndexBuild()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(entry.NS)
	if s.mode == Copied {
		return ns, nil // nothing has a head start during a copy
	}
	open, err := s.openBuilds(ctx, s.buildFilter(entry.Build))
	if err != nil || len(open) == 0 {
		return ns, err
	}
	if err := s.endBuild(ctx, entry.Build); err != nil {
		return ns, err
	}
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil {
		return ns, err
	}
	if exists && coll.UUID == open[0].uuid {
		if err := s.dropEarly(ctx, coll, open[0].specs); err != nil {
			return ns, err
		}
		if err := s.revive(ctx, ns, (*DeferredSpec).mayBeOfIndex); err != nil {
			return ns, err
		}
		if err := s.cfg.Catalog.Refresh(ctx, ns); err != nil {
			return ns, err
		}
	}
	return ns, s.closeBuild(ctx, entry.Build)
}

// dropEarly drops those indexes of a build that the target has, or is building.
func (s *step) dropEarly(ctx context.Context, coll *catalog.Collection, specs []bson.Raw) error {
	eased := false
	again := func(err error) bool { return busy(err) || says(err, servererr.IsNoIndex) }
	for tries := s.retry(again).Start(); ; {
		groups, err := s.early(ctx, coll.NS, specs)
		if err != nil || len(groups) == 0 {
			return err
		}
		for _, names := range groups {
			if _, err = s.run(ctx, dropping(coll, names)); err != nil {
				break
			}
			s.log(slog.LevelInfo, "index build aborted, as at the source", slog.String(keyNS, string(coll.NS)), slog.Any(keyIndex, names))
		}
		if err == nil {
			continue
		}
		if says(err, servererr.IsBuilding) && !eased {
			eased = true
			if err := s.ease(ctx, coll); err != nil {
				return err
			}
		}
		if err := tries.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// dropping is the command that drops indexes.
func dropping(coll *catalog.Collection, names []string) *change {
	return &change{db: coll.NS.DB(), name: "dropIndexes", first: coll.NS.Collection(), coll: coll, rest: fields{{"index", textsValue(names)}}}
}

// early returns the names of those indexes of a build that the target has, or is building,
// in groups that can be dropped together: a build in progress ends only with all of its
// indexes, and before that servers up to 5.1 drop no other index of the collection
// (drop_indexes.cpp).
func (s *step) early(ctx context.Context, ns oplog.Namespace, specs []bson.Raw) ([][]string, error) {
	ready, building, err := catalog.IndexBuilds(ctx, s.reader, ns)
	if servererr.IsNoNamespace(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var groups [][]string
	for _, present := range building {
		// A build with other indexes is not that of the head start.
		if names := common(present, specs); len(names) == len(present) {
			groups = append(groups, names)
		}
	}
	if names := common(ready, specs); len(names) > 0 {
		groups = append(groups, names)
	}
	return groups, nil
}

// common returns the names of those indexes that are present.
func common(present, specs []bson.Raw) (names []string) {
	for _, spec := range specs {
		if h := (&DeferredSpec{Index: textOf(spec, "name"), Spec: spec}); sameKey(present, h) {
			names = append(names, strings.Clone(h.Index))
		}
	}
	return names
}

func textsValue(texts []string) bson.RawValue {
	list := bsoncore.NewArrayBuilder()
	for _, text := range texts {
		list.AppendString(text)
	}
	return bson.RawValue{Type: bson.TypeArray, Value: list.Build()}
}
