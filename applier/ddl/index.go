package ddl

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// createIndexes builds the indexes of a createIndexes or commitIndexBuild.
func (s *step) createIndexes(ctx context.Context) (oplog.Namespace, error) {
	source, specs, err := s.indexSpecs()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(source)
	coll, deferred, err := s.existing(ctx, ns)
	if err != nil || coll == nil {
		return ns, err
	}
	present, err := catalog.Indexes(ctx, s.reader, ns)
	if err != nil {
		return ns, err
	}
	b := build{step: s, coll: coll, present: present, deferred: deferred}
	for _, spec := range specs {
		if err := b.add(split(spec).without("ns", "dropDups")); err != nil {
			return ns, err
		}
	}
	if err := b.unfinished(ctx); err != nil {
		return ns, err
	}
	if err := b.run(ctx); err != nil {
		return ns, err
	}
	if err := s.committed(ctx); err != nil {
		return ns, err
	}
	return ns, s.cfg.Catalog.Refresh(ctx, ns)
}

// committed ends the head start of a commitIndexBuild.
func (s *step) committed(ctx context.Context) error {
	if s.op.Command != oplog.CommandCommitIndexBuild || s.mode == Copied {
		return nil
	}
	entry, err := s.op.IndexBuild()
	if err != nil {
		return err
	}
	return s.closeBuild(ctx, entry.Build)
}

func (s *step) indexSpecs() (oplog.Namespace, []bson.Raw, error) {
	if s.op.Command == oplog.CommandCreateIndexes {
		entry, err := s.op.CreateIndexes()
		return entry.NS, []bson.Raw{entry.Spec}, err
	}
	entry, err := s.op.IndexBuild()
	return entry.NS, entry.Specs, err
}

// existing returns the collection of a command, and its deferred specs. It is nil if
// there is none and that is not an error.
func (s *step) existing(ctx context.Context, ns oplog.Namespace) (*catalog.Collection, Specs, error) {
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	switch {
	case err != nil:
		return nil, nil, err
	case !exists || coll.Type != catalog.TypeCollection:
		return nil, nil, s.absent(ns, "there is no such collection")
	}
	deferred, err := s.deferred(ctx, ns)
	return coll, deferred, err
}

// absent returns the error, if any, for a missing collection or index of a command: only
// a copy may be ahead.
func (s *step) absent(ns oplog.Namespace, what string) error {
	if s.mode == Copied {
		s.tolerate(ns, what)
		return nil
	}
	return s.diverged(ns, "%s", what)
}

// deferredFields returns the fields of an index that are deferred, or stay deferred: h is its
// spec so far. The documents of a copy are of different times, so together they may
// violate a uniqueness that the source always had; an index that was built on them stays
// without it.
func (s *step) deferredFields(h *DeferredSpec) []string {
	if s.cfg.UniqueIndexes == Serialized && s.mode != Copied && !h.isRelaxed() {
		return []string{optionExpire}
	}
	return []string{optionExpire, "unique", "prepareUnique"}
}

// isRelaxed reports whether the index lacks the uniqueness that it has at the source.
func (h *DeferredSpec) isRelaxed() bool {
	return slices.Contains(h.Fields, "unique") || slices.Contains(h.Fields, "prepareUnique")
}

// deferredOf returns which fields of a spec are deferred.
func (s *step) deferredOf(h *DeferredSpec, spec fields) []string {
	deferred := spec.only(s.deferredFields(h)...)
	for _, flag := range []string{"unique", "prepareUnique"} {
		if !deferred.truth(flag) {
			deferred = deferred.without(flag)
		}
	}
	return deferred.names()
}

// build builds some indexes of a collection.
type build struct {
	*step
	coll     *catalog.Collection
	present  []bson.Raw
	deferred Specs
	// wanted are the indexes to build or to defer in part, missing says which of them are
	// to be built.
	wanted  []DeferredSpec
	toBuild []bool
}

func hasIndex(specs []bson.Raw, name string) bool {
	return named(specs, name) != nil
}

// add adds one index.
func (b *build) add(spec fields) error {
	doc := spec.document()
	h := DeferredSpec{
		NS: b.coll.NS, UUID: b.coll.UUID, Index: strings.Clone(textOf(doc, "name")), Fields: b.deferredOf(&DeferredSpec{}, spec), Spec: doc,
	}
	there := hasIndex(b.present, h.Index)
	old, wasDeferred := b.deferred.find(h.Index)
	switch {
	case !there && !old.Absent:
	case b.mode == Once && !wasDeferred && isThere(b.present, &h):
		// There is nothing to do, whatever its origin.
	case b.mode == Once:
		return b.diverged(h.NS, "there is an index %s already", h.Index)
	case b.mode == Copied && (wasDeferred || !sameKey(b.present, &h)):
		// It is a newer one of that name, or was built before: the log drops and builds
		// it again, or the deferred spec is complete.
		b.tolerate(h.NS, "it has an index "+h.Index)
		return nil
	case !there:
		h.Absent = true
	}
	b.wanted = append(b.wanted, h)
	// An index of an earlier attempt, or of a head start, may be listed while its build is
	// still in progress: a repeated command waits for the build.
	b.toBuild = append(b.toBuild, !h.Absent && (!there || b.mode == Maybe || b.mode == Once && b.commits()))
	return nil
}

// unfinished selects those indexes of a copy that an earlier attempt has begun to build and that
// the target still builds. It lists them already, but may still abort the build, because of a
// document for example, and only a command that waits for it learns that. None of them is absent: add leaves those of
// a copy as they are.
func (b *build) unfinished(ctx context.Context) error {
	if b.mode != Copied || !slices.Contains(b.toBuild, false) {
		return nil
	}
	_, building, err := catalog.IndexBuilds(ctx, b.reader, b.coll.NS)
	if err != nil {
		return err
	}
	for i, h := range b.wanted {
		for _, specs := range building {
			b.toBuild[i] = b.toBuild[i] || hasIndex(specs, h.Index)
		}
	}
	return nil
}

// commits reports whether the indexes may have had a head start.
func (b *build) commits() bool { return b.op.Command == oplog.CommandCommitIndexBuild }

// isThere reports whether exactly that index exists, except for its deferred part.
func isThere(present []bson.Raw, h *DeferredSpec) bool {
	listed := func(spec bson.Raw) bson.Raw {
		return arrange(listedIndex(split(spec).without("background").without(h.Fields...)), indexNames)
	}
	want := listed(h.Spec)
	return slices.ContainsFunc(present, func(doc bson.Raw) bool { return bytes.Equal(listed(doc), want) })
}

// sameKey reports whether the existing index of that name has the same key.
func sameKey(present []bson.Raw, h *DeferredSpec) bool {
	i := slices.IndexFunc(present, func(doc bson.Raw) bool { return textOf(doc, "name") == h.Index })
	if i < 0 {
		return false
	}
	a, _ := rawbson.Lookup(present[i], "key")
	b, _ := rawbson.Lookup(h.Spec, "key")
	return bytes.Equal(a.Value, b.Value)
}

// run builds the missing indexes: together, in one scan of the collection, and one by one
// if that is refused.
func (b *build) run(ctx context.Context) error {
	var all []*DeferredSpec
	for i := range b.wanted {
		if b.toBuild[i] {
			all = append(all, &b.wanted[i])
		}
	}
	if len(all) > 0 {
		err := b.make(ctx, b.coll, all)
		switch {
		case err != nil && len(all) > 1 && isOfOne(b.mode, err):
			for _, h := range all {
				if err := b.made(h, b.make(ctx, b.coll, []*DeferredSpec{h})); err != nil {
					return err
				}
			}
		case err != nil:
			if err := b.made(all[0], err); err != nil {
				return err
			}
		}
	}
	if err := b.hidePresent(ctx); err != nil {
		return err
	}
	for i := range b.wanted {
		if _, was := b.deferred.find(b.wanted[i].Index); len(b.wanted[i].Fields) > 0 || b.wanted[i].Absent || was {
			if err := b.keep(ctx, &b.wanted[i], was); err != nil {
				return err
			}
		}
	}
	return nil
}

// isOfOne reports whether a refusal of several indexes may be due to one of them.
func isOfOne(mode Mode, err error) bool {
	return conflicts(err) || says(err, servererr.IsDuplicateKey) || isLeftOut(err) || mode == Copied && unbuildable(err)
}

// asked returns an index as a client must request it. An index that is logged, or listed,
// without a collation compares byte by byte; in a command it would inherit the
// collection's collation. Version 1 has none, and the index on _id has the collection's.
func asked(coll *catalog.Collection, h *DeferredSpec) fields {
	spec := split(h.Spec).without(h.Fields...)
	_, collated := split(coll.Options).get("collation")
	_, given := spec.get("collation")
	if !collated || given || isIDIndex(h.Spec) {
		return spec
	}
	if isOld(spec) {
		return spec
	}
	simple := bsoncore.NewDocumentBuilder().AppendString("locale", "simple").Build()
	return spec.set("collation", documentValue(bson.Raw(simple)))
}

// isIDIndex reports whether an index is the one on _id: 1 or -1 (index_descriptor.h). A
// hashed or text index on _id is not.
func isIDIndex(spec bson.Raw) bool {
	e, _ := rawbson.Lookup(spec, "key")
	key, _ := e.Document()
	it := rawbson.NewIter(key)
	if !it.Next() || !it.Is("_id") {
		return false
	}
	n, _ := it.Int64()
	return (n == 1 || n == -1) && !it.Next()
}

func conflicts(err error) bool { return says(err, servererr.IsIndexConflict) }

// made handles the outcome of building one index.
func (b *build) made(h *DeferredSpec, err error) error {
	switch {
	case err == nil:
		return nil
	case says(err, servererr.IsIndexThere) && b.mode != Once:
		return nil
	case conflicts(err) && b.lostUnique(h):
		// At the source the two indexes differ only in uniqueness. Without it they are
		// equal, and one of them must do.
		h.Absent = true
		return nil
	case conflicts(err) && b.mode == Copied:
		b.tolerate(h.NS, "it has an index like "+h.Index)
		h.Fields = nil
		return nil
	case says(err, servererr.IsDuplicateKey) && b.mode != Copied:
		return &UniqueError{OpTime: b.op.OpTime, NS: h.NS, Index: h.Index, Err: err}
	case isLeftOut(err) && b.mode != Copied && (!isReserved(h) || !says(err, servererr.IsIndexRefused)):
		// One that only the server makes is refused where the target has no such time series, which is another state than the source's.
		b.log(slog.LevelWarn, "index that the target refuses is left out",
			slog.String(keyNS, string(h.NS)), slog.String(keyIndex, h.Index), slog.Any(keyError, err))
		h.Absent, h.OfDocuments = true, isOfDocuments(err)
		return nil
	}
	return b.unbuilt(h, err)
}

// unbuilt returns the error for an index that could not be built.
func (s *step) unbuilt(h *DeferredSpec, err error) error {
	if s.mode == Copied && unbuildable(err) {
		return &IndexError{OpTime: s.op.OpTime, NS: h.NS, Index: h.Index, Err: err}
	}
	return fmt.Errorf("build the index %s: %w", h.Index, err)
}

// unbuildable reports whether the index or the documents, not the state of the target,
// caused a refusal.
func unbuildable(err error) bool {
	return says(err, servererr.IsDefinitionRefused) || says(err, servererr.IsBuildTooLarge)
}

// DeferBuild defers an index of a createIndexes or commitIndexBuild that cannot be built
// on the target: it is absent until cutover, and later commands of the log still find it.
// If the index exists after all, nothing is done.
func (e *Executor) DeferBuild(ctx context.Context, op *oplog.Op, index string) error {
	if op.Command != oplog.CommandCreateIndexes && op.Command != oplog.CommandCommitIndexBuild {
		return fmt.Errorf("ddl: defer the index %s of %s: it is of no command that builds indexes", index, op.OpTime)
	}
	if in, err := e.InScope(op); err != nil || !in {
		return err
	}
	s := e.step(op, Copied)
	if ns, err := s.deferBuild(ctx, index); err != nil {
		return s.wrap(ns, err)
	}
	return nil
}

func (s *step) deferBuild(ctx context.Context, index string) (oplog.Namespace, error) {
	source, specs, err := s.indexSpecs()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(source)
	coll, _, err := s.existing(ctx, ns)
	if err != nil || coll == nil {
		return ns, err
	}
	present, err := catalog.Indexes(ctx, s.reader, ns)
	if err != nil || hasIndex(present, index) {
		return ns, err
	}
	for _, doc := range specs {
		spec := split(doc).without("ns", "dropDups")
		if textOf(doc, "name") == index {
			return ns, s.deferSpec(ctx, &DeferredSpec{
				NS: ns, UUID: coll.UUID, Index: index, Fields: s.deferredOf(&DeferredSpec{}, spec), Absent: true, Spec: spec.document(),
			})
		}
	}
	return ns, s.op.Fault("o", fmt.Errorf("%w: the index %s", oplog.ErrMissingField, index))
}

// lostUnique reports whether the index, or another one of the collection, lacks the
// uniqueness that it has at the source.
func (b *build) lostUnique(h *DeferredSpec) bool {
	for _, other := range slices.Concat(Specs{*h}, b.deferred, b.wanted) {
		if other.isRelaxed() {
			return true
		}
	}
	return false
}

// revive builds the absent indexes of a collection that are to be tried, as far as nothing prevents it any
// more: in one scan, and one by one if that is refused.
func (s *step) revive(ctx context.Context, ns oplog.Namespace, try func(h *DeferredSpec) bool) error {
	specs, err := s.deferred(ctx, ns)
	if err != nil {
		return err
	}
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil || !exists {
		return err
	}
	var absent []*DeferredSpec
	for i := range specs {
		if specs[i].Absent && try(&specs[i]) {
			absent = append(absent, &specs[i])
		}
	}
	together := len(absent) > 1 && s.make(ctx, coll, absent) == nil
	for _, h := range absent {
		if !together {
			err = s.make(ctx, coll, []*DeferredSpec{h})
		}
		switch {
		case conflicts(err), unbuildable(err):
			if !conflicts(err) {
				s.log(slog.LevelWarn, "index still cannot be built", slog.String(keyNS, string(ns)), slog.String(keyIndex, h.Index), slog.Any(keyError, err))
			}
			if why := isOfDocuments(err); why != h.OfDocuments {
				h.OfDocuments = why
				if err := s.store(ctx, h); err != nil {
					return err
				}
			}
			continue
		case err != nil:
			return fmt.Errorf("build the index %s: %w", h.Index, err)
		}
		h.Absent = false
		if err := s.keep(ctx, h, true); err != nil {
			return err
		}
		s.log(slog.LevelInfo, "index built that had been left out", slog.String(keyNS, string(ns)), slog.String(keyIndex, h.Index))
	}
	return nil
}

// mayBeOfIndex reports whether an absent index may be built once another one is dropped.
func (h *DeferredSpec) mayBeOfIndex() bool { return !h.OfDocuments }

// dropIndex removes an existing index.
func (s *step) dropIndex(ctx context.Context, coll *catalog.Collection, name string) error {
	_, err := s.send(ctx, change{
		db: coll.NS.DB(), name: "dropIndexes", first: coll.NS.Collection(), rest: fields{{"index", stringValue(name)}}, coll: coll,
	})
	return err
}

// dropIndexes removes an index.
func (s *step) dropIndexes(ctx context.Context) (oplog.Namespace, error) {
	entry, err := s.op.DropIndexes()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(entry.NS)
	coll, deferred, err := s.existing(ctx, ns)
	if err != nil || coll == nil {
		return ns, err
	}
	present, err := catalog.Indexes(ctx, s.reader, ns)
	if err != nil {
		return ns, err
	}
	h, wasDeferred := deferred.find(entry.Name)
	switch {
	case hasIndex(present, entry.Name):
		if err := s.dropIndex(ctx, coll, entry.Name); err != nil {
			return ns, err
		}
	case h.Absent:
	case s.mode == Maybe:
	default:
		if err := s.absent(ns, "there is no index "+entry.Name); err != nil {
			return ns, err
		}
	}
	if wasDeferred {
		if err := s.releaseIndex(ctx, ns, entry.Name); err != nil {
			return ns, err
		}
	}
	if slices.ContainsFunc(deferred, func(h DeferredSpec) bool { return h.Absent && h.Index != entry.Name }) {
		if err := s.revive(ctx, ns, (*DeferredSpec).mayBeOfIndex); err != nil {
			return ns, err
		}
	}
	return ns, s.cfg.Catalog.Refresh(ctx, ns)
}
