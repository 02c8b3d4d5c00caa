package ddl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/oplog"
)

// A name that the log gives to a collection which the copy lacks is missing: the log drops
// it before the end of the copy, or the collection was not copied. It is recorded before
// the position passes the command, because a later attempt ends the copy and could not
// find it otherwise:
//
//	{_id: "LINK/NS", ts, t}
//
// NS is the target's name, ts and t are of the command.

// Missing returns, sorted, the new names of renamed collections for which a copy had neither
// the old nor the new name.
func (e *Executor) Missing(ctx context.Context) ([]oplog.Namespace, error) {
	if err := e.loadMissing(ctx); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(e.missing)), nil
}

// loadMissing reads the missing names, once.
func (e *Executor) loadMissing(ctx context.Context) error {
	if e.missing != nil {
		return nil
	}
	docs, err := readMetadata(ctx, e.reader, e.cfg.MetaDB, metadata.Missing, metadata.Below(e.cfg.Own))
	if err != nil {
		return fmt.Errorf("read what the copy lacks: %w", err)
	}
	names := make(map[oplog.Namespace]oplog.OpTime, len(docs))
	for _, doc := range docs {
		r := metadata.NewReader(doc)
		at := oplog.OpTime{TS: r.Timestamp("ts"), Term: r.Int64("t")}
		ns := oplog.Namespace(strings.TrimPrefix(r.Text("_id"), e.cfg.Own+"/"))
		if !ns.IsCollection() {
			r.Fault("_id", "a namespace")
		}
		if err := r.Err(); err != nil {
			return fmt.Errorf("read what the copy lacks: %s.%s has an invalid document: %w: %s", e.cfg.MetaDB, metadata.Missing, err, doc)
		}
		names[ns] = at
	}
	e.missing = names
	return nil
}

// noteMissing records that the copy lacks the collection that now has this name.
func (s *step) noteMissing(ctx context.Context, ns oplog.Namespace) error {
	if err := s.loadMissing(ctx); err != nil {
		return err
	}
	at := s.op.OpTime
	err := s.put(ctx, metadata.Missing, metadata.ByID(s.missingID(ns)), func(dst []byte) []byte {
		dst = bsoncore.AppendTimestampElement(dst, "ts", at.TS.T, at.TS.I)
		return bsoncore.AppendInt64Element(dst, "t", at.Term)
	})
	if err != nil {
		return fmt.Errorf("note that the copy lacks %s: %w", ns, err)
	}
	s.missing[ns.Clone()] = at
	return nil
}

// notMissing records that a name is no longer missing: something has it, or nothing is to have it.
// Only a copy has missing names.
func (s *step) notMissing(ctx context.Context, ns oplog.Namespace) error {
	if s.mode != Copied {
		return nil
	}
	if err := s.loadMissing(ctx); err != nil {
		return err
	}
	return s.forgetMissing(ctx, ns)
}

// forgetMissing deletes the record of a missing name, if there is one.
func (s *step) forgetMissing(ctx context.Context, ns oplog.Namespace) error {
	if _, is := s.missing[ns]; !is {
		return nil
	}
	if err := s.remove(ctx, metadata.Missing, metadata.ByID(s.missingID(ns))); err != nil {
		return fmt.Errorf("note that %s is not missing any more: %w", ns, err)
	}
	delete(s.missing, ns)
	return nil
}

func (s *step) missingID(ns oplog.Namespace) string { return s.cfg.Own + "/" + string(ns) }

// checkMissing returns an error at the end of a copy that lacks a collection. One that is left
// out for a resync is copied there.
func (s *step) checkMissing(ctx context.Context) error {
	names, err := s.Missing(ctx)
	if err != nil {
		return err
	}
	for _, ns := range names {
		source, in := s.cfg.Scope.Source(ns)
		if in {
			_, exists, err := s.cfg.Catalog.Get(ctx, ns)
			if err != nil {
				return err
			}
			if !exists {
				return &ResyncError{
					OpTime: s.missing[ns], Name: oplog.CommandRenameCollection.String(), NS: source.Clone(),
					Why: "the copy has it neither under this name nor under the one that it had before",
				}
			}
		}
		if err := s.forgetMissing(ctx, ns); err != nil {
			return err
		}
	}
	return nil
}
