package repair

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// errGone reports a collection that does not exist.
	errGone = errors.New("there is no such collection")
	// errChanged reports one that has another UUID than before.
	errChanged = errors.New("the collection was dropped, made again or renamed meanwhile")
)

// endTimeout limits the end of a transaction and its session, which would time out otherwise.
const endTimeout = time.Second

func document() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }

// uuidOf returns the UUID of the collection that has a name, and the server's time then. It is
// errGone if there is none.
func uuidOf(ctx context.Context, c mongo.Caller, ns oplog.Namespace) (id oplog.UUID, at bson.Timestamp, err error) {
	body := document().AppendInt32("listCollections", 1).
		AppendDocument("filter", document().AppendString("name", ns.Collection()).Build()).Build()
	reply, err := c.Call(ctx, mongo.Command{DB: ns.DB(), Body: bson.Raw(body)})
	if err != nil {
		return id, at, fmt.Errorf("look for %s: %w", ns, err)
	}
	batch, err := mongo.ReadBatch(reply)
	if err != nil {
		return id, at, fmt.Errorf("look for %s: %w", ns, err)
	}
	e, _ := rawbson.Lookup(reply, "operationTime")
	at, _ = e.Timestamp()
	for _, doc := range batch.Docs {
		info, _ := rawbson.Lookup(doc, "info")
		inner, _ := info.Document()
		e, _ := rawbson.Lookup(inner, "uuid")
		if subtype, value, ok := e.Binary(); ok && subtype == bson.TypeBinaryUUID && len(value) == len(id) {
			return oplog.UUID(value), at, nil
		}
	}
	return id, at, fmt.Errorf("look for %s: %w", ns, errGone)
}

// snapshot is the read concern for a cluster time.
func snapshot(at bson.Timestamp) bsoncore.Document {
	return document().AppendString("level", "snapshot").AppendTimestamp("atClusterTime", at.T, at.I).Build()
}

// byIDs reads documents by their _ids, as of a time, and errChanged if the name was not that of the expected collection then; zero is any.
// The error is applier.ErrRepairSize if several of
// them are too much for a group.
func byIDs(ctx context.Context, c mongo.Caller, ns oplog.Namespace, expected oplog.UUID, ids []bson.RawValue, at bson.Timestamp) ([]bson.Raw, error) {
	list := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		list.AppendValue(coreValue(id))
	}
	in := document().AppendArray("$in", list.Build()).Build()
	body := document().AppendString("find", ns.Collection())
	if !expected.IsZero() {
		body.AppendBinary("collectionUUID", bson.TypeBinaryUUID, expected[:])
	}
	body.AppendDocument("filter", document().AppendDocument("_id", in).Build()).
		AppendInt32("batchSize", int32(len(ids)+1)). //nolint:gosec // a group is small
		AppendDocument("readConcern", snapshot(at))
	find := mongo.Command{DB: ns.DB(), Body: bson.Raw(body.Build())}
	docs, open, err := readOn(ctx, c, find, len(ids) > 1)
	switch {
	case servererr.IsOtherCollection(err):
		err = fmt.Errorf("%w: %w", errChanged, err)
	case servererr.IsOptionRefused(err): // before 5.0
		docs, err = inTxn(ctx, c, find, len(ids) > 1)
	case open != 0:
		kill := document().AppendString("killCursors", ns.Collection()).
			AppendArray("cursors", bsoncore.NewArrayBuilder().AppendInt64(open).Build()).Build()
		_, _ = c.Call(ctx, mongo.Command{DB: ns.DB(), Body: bson.Raw(kill)}) // it times out otherwise
	}
	if err != nil {
		return nil, fmt.Errorf("read %d documents of %s: %w", len(ids), ns, err)
	}
	return docs, nil
}

// readOn reads all documents of a find: a server may end a reply early, whatever its size. If they
// are limited and too much for a group, it returns applier.ErrRepairSize, and the cursor if it
// is still open.
func readOn(ctx context.Context, c mongo.Caller, find mongo.Command, limited bool) (docs []bson.Raw, open int64, err error) {
	size := 0
	for cmd := find; ; {
		reply, err := c.Call(ctx, cmd)
		if err != nil {
			return nil, 0, err
		}
		batch, err := mongo.ReadBatch(reply)
		if err != nil {
			return nil, 0, err
		}
		docs = append(docs, batch.Docs...)
		for _, doc := range batch.Docs {
			size += len(doc)
		}
		switch {
		case limited && size > applier.RepairBytes:
			return nil, batch.Cursor, applier.ErrRepairSize
		case batch.Cursor == 0:
			return docs, 0, nil
		}
		cmd = mongo.Command{DB: find.DB, Body: bson.Raw(batch.GetMore().Build())}
	}
}

// inTxn is readOn in a transaction: servers before 5.0 read as of an earlier time only in one. It
// needs no commit: a majority had that time's entry before it was asked for, so what the transaction
// reads cannot be rolled back.
func inTxn(ctx context.Context, c mongo.Caller, find mongo.Command, limited bool) ([]bson.Raw, error) {
	session := mongo.NewSession(c, mongo.NewSessionID(), 1)
	txn := session.Begin()
	docs, _, err := readOn(ctx, txn, find, limited)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	txn.Abort(ctx)
	end := document().AppendArray("endSessions", bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(session.ID())).Build()).Build()
	_, _ = c.Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(end)}) // it times out otherwise
	return docs, err
}

// inRange reads the _ids of a range.
func inRange(ctx context.Context, c mongo.Caller, ns oplog.Namespace, from, to bson.RawValue) ([]bson.RawValue, error) {
	between := document().AppendValue("$gte", coreValue(from)).AppendValue("$lte", coreValue(to)).Build()
	body := document().AppendString("find", ns.Collection()).
		AppendDocument("filter", document().AppendDocument("_id", between).Build()).
		AppendDocument("projection", document().AppendInt32("_id", 1).Build()).
		AppendInt64("limit", mostInRange+1).
		AppendDocument("readConcern", document().AppendString("level", "majority").Build()).Build()
	docs, err := mongo.Retry{For: time.Minute, Again: mongo.RepeatsRead}.ReadAll(ctx, c, mongo.NewSessionID(), ns.DB(), bson.Raw(body))
	if err != nil {
		return nil, fmt.Errorf("list the documents of %s in the range: %w", ns, err)
	}
	ids := make([]bson.RawValue, 0, len(docs))
	for _, doc := range docs {
		ids = append(ids, idOf(doc))
	}
	return ids, nil
}

func idOf(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}

// keyOf returns a text that is the same for _ids that a server takes for equal.
func keyOf(id bson.RawValue) string { return string(bsonorder.AppendKey(nil, id, nil)) }

// distinct returns each _id once.
func distinct(ids []bson.RawValue) []bson.RawValue {
	seen := make(map[string]bool, len(ids))
	var all []bson.RawValue
	for _, id := range ids {
		if key := keyOf(id); !seen[key] {
			seen[key] = true
			all = append(all, id)
		}
	}
	return all
}

func coreValue(v bson.RawValue) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}
}

// show returns an _id as a text.
func show(id bson.RawValue) string {
	const most = 80
	text := bsontext.Value(id)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return printable.Text(text)
}
