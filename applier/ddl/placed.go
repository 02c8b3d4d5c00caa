package ddl

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/oplog"
)

// placed reports whether the target is a copy whose names are those of the log.
func (s *step) placed() bool { return s.again == Copied && s.cfg.Placed }

// runPlaced is run on a copy whose names are those of the log.
func (r *renaming) runPlaced(ctx context.Context, src, dst *catalog.Collection) error {
	switch {
	case dst != nil && dst.Type == catalog.TypeTimeseries:
		return r.diverged(r.from, "%s is a %s", r.to, dst.Type)
	case src == nil:
		return r.withoutSource(ctx, dst)
	case dst != nil && dst.Type == catalog.TypeCollection && !r.drops:
		return r.diverged(r.from, "%s exists, and the log does not replace it", r.to)
	}
	if r.drops {
		if err := r.note(ctx, src.UUID); err != nil {
			return err
		}
	}
	if dst != nil && dst.Type == catalog.TypeView {
		// It is of a later time, and the log makes it again.
		r.tolerate(r.to, "it is a "+dst.Type.String())
		if err := r.dropNow(ctx, r.to); err != nil {
			return err
		}
		dst = nil
	}
	if err := r.move(ctx, src, dst); err != nil {
		return err
	}
	return r.follow(ctx)
}

// withoutSource is a rename of what is not there: it has been carried out, or the
// source had dropped the collection before it could be copied. Then the target has
// nothing to give the new name to, but what had it before is to go. Dst is nil
// where nothing has it.
func (r *renaming) withoutSource(ctx context.Context, dst *catalog.Collection) error {
	if dst != nil && dst.Type == catalog.TypeCollection {
		moved := !r.drops // else nothing can have had the new name before
		if r.drops {
			var err error
			if moved, err = r.noted(ctx, dst.UUID); err != nil {
				return err
			}
		}
		if moved {
			r.tolerate(r.from, "there is "+string(r.to)+" already")
			return r.follow(ctx)
		}
		if err := r.dropOne(ctx, r.to); err != nil {
			return err
		}
	}
	r.tolerate(r.from, "it was dropped before it could be copied")
	return r.owe(ctx, r.to)
}

// The rename that replaces another collection is noted before it is sent: whether
// it was carried out cannot be told from the names afterwards. There is one
// document for a link, that of the last one:
//
//	{_id: link, ts, t, from, to, uuid}
//
// uuid is the target's, of the collection that is renamed.
const notesCollection = "renames"

// note notes the rename of the collection.
func (r *renaming) note(ctx context.Context, uuid oplog.UUID) error {
	id := bsoncore.NewDocumentBuilder().AppendString("_id", r.cfg.Link)
	update := bsoncore.NewDocumentBuilder().
		AppendDocument("q", id.Build()).
		AppendDocument("u", bsoncore.Document(r.noteOf(uuid))).
		AppendBoolean("upsert", true).
		Build()
	cmd := command("update", notesCollection).AppendArray("updates", bsoncore.NewArrayBuilder().AppendDocument(update).Build())
	if err := r.write(ctx, cmd); err != nil {
		return fmt.Errorf("note the rename of %s to %s: %w", r.from, r.to, err)
	}
	return nil
}

func (r *renaming) noteOf(uuid oplog.UUID) bson.Raw {
	return bson.Raw(bsoncore.NewDocumentBuilder().
		AppendString("_id", r.cfg.Link).
		AppendTimestamp("ts", r.op.OpTime.TS.T, r.op.OpTime.TS.I).
		AppendInt64("t", r.op.OpTime.Term).
		AppendString("from", string(r.from)).
		AppendString("to", string(r.to)).
		AppendBinary("uuid", bson.TypeBinaryUUID, uuid[:]).
		Build())
}

// noted reports whether this very rename was noted for the collection: then it is
// that which has the new name.
func (r *renaming) noted(ctx context.Context, uuid oplog.UUID) (bool, error) {
	cmd := command("find", notesCollection).
		AppendDocument("filter", bsoncore.Document(r.noteOf(uuid))).
		AppendInt32("limit", 1).AppendBoolean("singleBatch", true)
	docs, err := catalog.ReadAll(ctx, r.sight, r.cfg.MetaDB, bson.Raw(cmd.Build()))
	if err != nil {
		return false, fmt.Errorf("look whether %s was renamed to %s: %w", r.from, r.to, err)
	}
	return len(docs) > 0, nil
}
