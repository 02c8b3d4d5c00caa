package ddl

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/oplog"
)

// placed reports whether the target is a copy whose names are those of the log.
func (s *step) placed() bool { return s.mode == Copied && s.cfg.Placed }

// runPlaced is run for a copy whose names are those of the log.
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
		// It is newer, and the log creates it again.
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

// withoutSource handles a rename of a missing collection: it has been executed, or the
// source had dropped the collection before it could be copied. Then nothing gets the new
// name, and the collection that had it before is dropped. Dst is nil where there is none.
func (r *renaming) withoutSource(ctx context.Context, dst *catalog.Collection) error {
	if dst != nil && dst.Type == catalog.TypeCollection {
		moved := !r.drops // otherwise nothing can have had the new name before
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
	return r.noteMissing(ctx, r.to)
}

// The rename that replaces another collection is recorded before it is sent: the names do
// not show afterwards whether it was executed. There is one document for a link, that of
// the last such rename:
//
//	{_id: LINK, ts, t, from, to, uuid}
//
// uuid is the target's, of the collection that is renamed.

// note records the rename of the collection.
func (r *renaming) note(ctx context.Context, uuid oplog.UUID) error {
	if err := r.put(ctx, metadata.Renames, metadata.ByID(r.cfg.Own), r.noteOf(uuid)); err != nil {
		return fmt.Errorf("note the rename of %s to %s: %w", r.from, r.to, err)
	}
	return nil
}

// noteOf appends the fields of a recorded rename, except the _id.
func (r *renaming) noteOf(uuid oplog.UUID) filter {
	return func(dst []byte) []byte {
		dst = bsoncore.AppendTimestampElement(dst, "ts", r.op.OpTime.TS.T, r.op.OpTime.TS.I)
		dst = bsoncore.AppendInt64Element(dst, "t", r.op.OpTime.Term)
		dst = bsoncore.AppendStringElement(dst, "from", string(r.from))
		dst = bsoncore.AppendStringElement(dst, "to", string(r.to))
		return bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, uuid[:])
	}
}

// noted reports whether this rename was recorded for the collection: then it is the one
// that has the new name.
func (r *renaming) noted(ctx context.Context, uuid oplog.UUID) (bool, error) {
	docs, err := readMetadata(ctx, r.reader, r.cfg.MetaDB, metadata.Renames, func(dst []byte) []byte {
		return r.noteOf(uuid)(metadata.ByID(r.cfg.Own)(dst))
	})
	if err != nil {
		return false, fmt.Errorf("look whether %s was renamed to %s: %w", r.from, r.to, err)
	}
	return len(docs) > 0, nil
}
