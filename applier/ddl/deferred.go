package ddl

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// DeferIndexes drops those indexes of a collection of the target for which refuses
// returns true, until EndCopy: they may refuse a document that results from applying op to
// a newer document of the copy, and that the source never had. After a copy they stay absent until cutover: the target, of
// another version, refuses a document that the source's index contains. It returns their names, none where there is no such index (any
// more). Each is recorded as absent before it is dropped, so it is never lost; the call
// is idempotent. The index on _id and unique indexes stay, because operations are routed
// by them. Other methods of the Executor may be called concurrently, and DeferIndexes for another collection: a build may last
// for hours.
func (e *Executor) DeferIndexes(ctx context.Context, op *oplog.Op, ns oplog.Namespace, refuses func(spec bson.Raw) bool) ([]string, error) {
	s := e.separate(op)
	s.mode = Copied
	names, err := s.deferIndexes(ctx, ns, refuses)
	if err != nil {
		return names, fmt.Errorf("ddl: defer indexes of %s for the entry %s: %w", ns, op.OpTime, err)
	}
	return names, nil
}

func (s *step) deferIndexes(ctx context.Context, ns oplog.Namespace, refuses func(spec bson.Raw) bool) ([]string, error) {
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil || !exists {
		return nil, err
	}
	deferred, err := s.deferred(ctx, ns)
	if err != nil {
		return nil, err
	}
	present, err := catalog.Indexes(ctx, s.reader, ns)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, spec := range present {
		f := split(spec)
		if isIDIndex(spec) || f.truth("clustered") || f.truth("unique") || f.truth("prepareUnique") || !refuses(spec) {
			continue
		}
		name := strings.Clone(textOf(spec, "name"))
		h, was := deferred.find(name)
		if !was {
			h = DeferredSpec{NS: ns, UUID: coll.UUID, Index: name, Spec: bytes.Clone(spec)}
		}
		h.Absent, h.OfDocuments = true, true
		if err := s.store(ctx, &h); err != nil {
			return names, err
		}
		if err := s.dropIndex(ctx, coll, name); err != nil && !says(err, servererr.IsNoIndex) {
			return names, err
		}
		s.log(slog.LevelInfo, "index that may refuse a document is deferred", slog.String(keyNS, string(ns)), slog.String(keyIndex, name))
		names = append(names, name)
	}
	return names, nil
}

// EndCopy builds the indexes that were deferred during the copy, which is consistent as
// of at. A collection that was not copied is a *ResyncError. An index that is still
// refused stays absent until cutover, and is logged.
func (e *Executor) EndCopy(ctx context.Context, at oplog.OpTime) error {
	s := e.step(&oplog.Op{Kind: oplog.KindCommand, OpTime: at}, Maybe)
	if err := s.checkMissing(ctx); err != nil {
		if isTyped(err) {
			return err
		}
		return fmt.Errorf("ddl: end the copy at %s: %w", at, err)
	}
	deferred, err := ReadDeferred(ctx, e.reader, e.cfg.MetaDB, e.cfg.Link)
	if err != nil {
		return fmt.Errorf("ddl: end the copy at %s: %w", at, err)
	}
	var names []oplog.Namespace
	for _, h := range deferred {
		// A collection that is left out for a resync may be a different one by now.
		if _, in := e.cfg.Scope.Source(h.NS); in && h.Absent && !slices.Contains(names, h.NS) {
			names = append(names, h.NS)
		}
	}
	for _, ns := range names {
		// The catalog need not be read again: no index of a copy is unique, so the
		// routing of operations does not change.
		if err := s.revive(ctx, ns, func(*DeferredSpec) bool { return true }); err != nil {
			return fmt.Errorf("ddl: end the copy at %s: indexes of %s: %w", at, ns, err)
		}
	}
	return nil
}

// MayRefuse reports whether an index may have caused this fault. Where the fault names no
// kind of index, every index may, except those on one field, which accept everything.
func MayRefuse(fault servererr.KeyFault, spec bson.Raw) bool {
	e, _ := rawbson.Lookup(spec, "key")
	key, _ := e.Document()
	fields, kind, numbered, wildcard := 0, "", false, false
	for it := rawbson.NewIter(key); it.Next(); fields++ {
		if text, special := it.Text(); special {
			kind = text
		}
		wildcard = wildcard || strings.Contains(it.Name(), "$**")
		for part := range strings.SplitSeq(it.Name(), ".") {
			numbered = numbered || part != "" && strings.Trim(part, "0123456789") == ""
		}
	}
	switch fault {
	case servererr.ParallelKey:
		return fields > 1 && !wildcard
	case servererr.NumberedKey:
		return numbered
	case servererr.SphereKey:
		return kind == "2dsphere" || kind == reservedKind
	case servererr.FlatKey, servererr.TextKey, servererr.HashedKey:
		return kind == fault.String()
	case servererr.AnyKey:
	}
	return fields > 1 || kind != "" || numbered || wildcard
}
