package applier

import (
	"context"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// CappedKept is documents of a capped collection that the source has deleted, that
// the target did not trim by itself, and that it does not let a client delete. It
// is told once for each collection and writer.
type CappedKept struct {
	NS        oplog.Namespace
	Documents int
	// OpTime is the first entry's.
	OpTime oplog.OpTime
}

// Message implements event.Event.
func (CappedKept) Message() string {
	return "documents deleted from a capped collection stay, as the target refuses to delete from one"
}

// Level implements event.Event.
func (CappedKept) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e CappedKept) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int(keyOps, e.Documents), slog.String(keyOpTime, e.OpTime.String()))
}

// trimmed deals with deletes from a capped collection that the target refuses, as
// servers before 5.0.7 do. A primary logs its own trimming as deletes, right behind
// the insert that caused it; the target has trimmed itself on the same insert, so
// that what is to be deleted is gone already.
func (w *writer) trimmed(ctx context.Context, c besideTxn, pw *plan.Write, ops []plan.Op, t *tally) error {
	first := &ops[pw.Ops[0][0]]
	ids := bsoncore.NewArrayBuilder()
	for _, of := range pw.Ops {
		id := ops[of[0]].ID
		ids.AppendValue(bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	}
	body := bsoncore.NewDocumentBuilder().
		AppendString("find", pw.NS.Collection()).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().
			AppendDocument("_id", bsoncore.NewDocumentBuilder().AppendArray("$in", ids.Build()).Build()).Build()).
		AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()).
		AppendBoolean("singleBatch", true).
		AppendInt32("batchSize", int32(len(pw.Ops))).Build()
	reply, err := c.read(ctx, call.Command{DB: pw.NS.DB(), Body: bson.Raw(body)})
	if err != nil {
		return err
	}
	kept, _, err := batchOf(reply)
	if err != nil {
		return err
	}
	t.deletesEmpty += len(pw.Ops) - len(kept)
	t.ignored += len(kept)
	if len(kept) > 0 && !w.kept[pw.NS] {
		w.kept[pw.NS] = true
		w.tell(CappedKept{NS: pw.NS, Documents: len(kept), OpTime: first.At.OpTime})
	}
	return nil
}
