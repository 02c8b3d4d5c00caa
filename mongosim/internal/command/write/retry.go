package write

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// logged is the content of a retryable statement's entry.
type logged struct {
	op    string
	o, o2 bson.Raw
}

// parseLogged reads the entry of a statement. A no-op stands for the entry that
// it carries, as after a copy of the session's history, and inserts may be
// logged many in one entry, since 8.0.
func parseLogged(raw bson.Raw, stmt int32) logged {
	var l logged
	it := rawbson.NewIter(raw)
	for it.Next() {
		switch string(it.Key) {
		case "op":
			l.op, _ = it.Text()
		case "o":
			l.o, _ = it.Document()
		case "o2":
			l.o2, _ = it.Document()
		}
	}
	if l.op == "n" && len(l.o2) > rawbson.MinSize {
		return parseLogged(l.o2, stmt)
	}
	if l.op != "c" {
		return l
	}
	ops, _ := rawbson.Lookup(l.o, "applyOps")
	array, _ := ops.Array()
	each := rawbson.NewIter(array)
	for each.Next() {
		op, _ := each.Document()
		id, _ := rawbson.Lookup(op, "stmtId")
		if n, ok := id.Int64(); ok && n == int64(stmt) {
			return parseLogged(op, stmt)
		}
	}
	return l
}

// countRetried counts a previously executed statement of insert, update or
// delete by its entry.
func (w *writer) countRetried(i int, stmt opwrite.Stmt, entry storage.OplogEntry) error {
	l := parseLogged(entry.Raw, stmt.ID)
	if want := map[string]string{"insert": "i", "delete": "d"}[w.kind]; want != "" && l.op != want {
		return w.notAsRetried(entry)
	}
	if w.kind == "update" && l.op != "u" && l.op != "i" {
		return w.notAsRetried(entry)
	}
	w.n++
	w.retried = append(w.retried, stmt.ID)
	if w.kind != "update" {
		return nil
	}
	switch l.op {
	case "u":
		w.modified++
	case "i":
		id, _ := rawbson.Lookup(l.o, "_id")
		w.upserted = append(w.upserted, upserted{i, id.Raw()})
	}
	return nil
}

// notAsRetried refuses a retry that differs from the executed statement.
func (w *writer) notAsRetried(entry storage.OplogEntry) error {
	return servererr.New(40608, "%s retry request is not compatible with previous write in the transaction of type: "+
		"oplog entry %s", w.kind, bsontext.Document(entry.Raw))
}
