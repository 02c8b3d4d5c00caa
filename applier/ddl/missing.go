package ddl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
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
const missingCollection = metadata.Missing

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
	prefix := e.cfg.Own + "/" // a 0 follows the slash
	ids := bsoncore.NewDocumentBuilder().AppendString("$gte", prefix).AppendString("$lt", e.cfg.Own+"0").Build()
	cmd := command("find", missingCollection).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendDocument("_id", ids).Build())
	docs, err := catalog.ReadAll(ctx, e.reader, e.cfg.MetaDB, bson.Raw(cmd.Build()))
	if err != nil {
		return fmt.Errorf("read what the copy lacks: %w", err)
	}
	names := make(map[oplog.Namespace]oplog.OpTime, len(docs))
	for _, doc := range docs {
		id, _ := doc.Lookup("_id").StringValueOK()
		name, found := strings.CutPrefix(id, prefix)
		var at oplog.OpTime
		var isTime, isTerm bool
		at.TS.T, at.TS.I, isTime = doc.Lookup("ts").TimestampOK()
		at.Term, isTerm = doc.Lookup("t").Int64OK()
		if ns := oplog.Namespace(name); found && ns.IsCollection() && isTime && isTerm {
			names[ns.Clone()] = at
			continue
		}
		return fmt.Errorf("read what the copy lacks: %s.%s has an invalid document: %s", e.cfg.MetaDB, missingCollection, doc)
	}
	e.missing = names
	return nil
}

// noteMissing records that the copy lacks the collection that now has this name.
func (s *step) noteMissing(ctx context.Context, ns oplog.Namespace) error {
	if err := s.loadMissing(ctx); err != nil {
		return err
	}
	id, at := s.missingID(ns), s.op.OpTime
	doc := bsoncore.NewDocumentBuilder().AppendString("_id", id).AppendTimestamp("ts", at.TS.T, at.TS.I).AppendInt64("t", at.Term)
	update := bsoncore.NewDocumentBuilder().
		AppendDocument("q", bsoncore.NewDocumentBuilder().AppendString("_id", id).Build()).
		AppendDocument("u", doc.Build()).
		AppendBoolean("upsert", true).
		Build()
	cmd := command("update", missingCollection).AppendArray("updates", bsoncore.NewArrayBuilder().AppendDocument(update).Build())
	if err := s.write(ctx, cmd); err != nil {
		return fmt.Errorf("note that the copy lacks %s: %w", ns, err)
	}
	s.missing[ns.Clone()] = at
	return nil
}

// notMissing records that a name is no longer missing: something has it, or nothing is to have it.
// Only a copy has missing names.
func (s *step) notMissing(ctx context.Context, ns oplog.Namespace) error {
	if s.again != Copied {
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
	statement := bsoncore.NewDocumentBuilder().
		AppendDocument("q", bsoncore.NewDocumentBuilder().AppendString("_id", s.missingID(ns)).Build()).AppendInt32("limit", 1).Build()
	cmd := command("delete", missingCollection).AppendArray("deletes", bsoncore.NewArrayBuilder().AppendDocument(statement).Build())
	if err := s.write(ctx, cmd); err != nil {
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
