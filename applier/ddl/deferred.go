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

// DeferIndexes drops those indexes of a collection of the target that refuses says may
// refuse a document, until EndCopy: op, which meets a copy, makes a document that the
// source never had. It returns their names, none where there is no such index (any
// more). Each is noted as absent before it is dropped, so it is not lost whatever
// happens; repeating does no harm. The index on _id stays, and so do those that are
// unique: operations are routed by them. Calls must not be concurrent with any other
// of the Executor.
func (e *Executor) DeferIndexes(ctx context.Context, op *oplog.Op, ns oplog.Namespace, refuses func(spec bson.Raw) bool) ([]string, error) {
	s := e.step(op, Copied)
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
	held, err := s.held(ctx, ns)
	if err != nil {
		return nil, err
	}
	present, err := catalog.Indexes(ctx, s.sight, ns)
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
		h, was := held.find(name)
		if !was {
			h = HeldSpec{NS: ns, UUID: coll.UUID, Index: name, Spec: bytes.Clone(spec)}
		}
		h.Absent = true
		if err := s.store(ctx, &h); err != nil {
			return names, err
		}
		if err := s.dropIndex(ctx, coll, name); err != nil && !says(err, servererr.IsNoIndex) {
			return names, err
		}
		s.log(slog.LevelInfo, "index deferred until the copy is consistent", slog.String(keyNS, string(ns)), slog.String(keyIndex, name))
		names = append(names, name)
	}
	return names, nil
}

// EndCopy builds what indexes were left out while the target was a copy, now that it
// is what the source was at an entry. That a collection was not copied is a
// *ResyncError. What is still refused stays absent until
// cutover, and is told as IndexAbsent.
func (e *Executor) EndCopy(ctx context.Context, at oplog.OpTime) error {
	s := e.step(&oplog.Op{Kind: oplog.KindCommand, OpTime: at}, Maybe)
	if err := s.settle(ctx); err != nil {
		if isTyped(err) {
			return err
		}
		return fmt.Errorf("ddl: end the copy at %s: %w", at, err)
	}
	held, err := Held(ctx, e.sight, e.cfg.MetaDB, e.cfg.Link)
	if err != nil {
		return fmt.Errorf("ddl: end the copy at %s: %w", at, err)
	}
	var names []oplog.Namespace
	for _, h := range held {
		// What is left to somebody else for a while may be another collection by now.
		if _, in := e.cfg.Scope.Source(h.NS); in && h.Absent && !slices.Contains(names, h.NS) {
			names = append(names, h.NS)
		}
	}
	for _, ns := range names {
		// The catalog is not read again: of what a copy has nothing is unique, and
		// operations are not routed in another way for the rest.
		if err := s.revive(ctx, ns); err != nil {
			return fmt.Errorf("ddl: end the copy at %s: indexes of %s: %w", at, ns, err)
		}
	}
	return nil
}

// MayRefuse reports whether an index may have refused a document so: where that stands
// for no kind of index, any may but those on one field, which take everything.
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
		return kind == "2dsphere" || kind == "2dsphere_bucket"
	case servererr.FlatKey, servererr.TextKey, servererr.HashedKey:
		return kind == fault.String()
	case servererr.AnyKey:
	}
	return fields > 1 || kind != "" || numbered || wildcard
}
