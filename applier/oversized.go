package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// A document that becomes too large, because an update of the log meets a newer document
// of a copy, is set aside: it is stored in pieces in the metadata, in the transaction that
// moves the lane, and the target's document stays unchanged. Later operations change the
// oversized document, until it fits again and is written to the target. At the end of the
// copy none can be left, because the source has none.
//
//	{_id: {link, uuid, id: binary, part}, doc: binary}
//
// uuid is the UUID of the target's collection, so that a rename changes nothing and oversized
// documents of a dropped collection are ignored; id is the type and the bytes of the _id.

const (
	// maxDocument is the largest document that a server stores, in bytes.
	maxDocument = 16 << 20
	// oversizedPart is the size of a piece, in bytes.
	oversizedPart = 8 << 20
)

// oversizedKey identifies a document that may be set aside.
type oversizedKey struct {
	uuid oplog.UUID
	id   string // type and bytes of the _id
}

func keyOf(op *plan.Op) oversizedKey {
	return oversizedKey{op.Collection.UUID, string(append([]byte{byte(op.ID.Type)}, op.ID.Value...))}
}

// mark makes operations on a document check whether it is set aside. It returns false if
// they do already.
func (w *writer) mark(ctx context.Context, op *plan.Op) (bool, error) {
	if w.learned.isMarked(op) {
		return false, nil
	}
	if err := w.create(ctx, metadata.Oversized); err != nil {
		return false, err
	}
	w.learned.add(keyOf(op))
	w.cfg.Observer.Log(slog.LevelInfo, "document is too large while the copy is not consistent, and is set aside",
		slog.String(keyOpTime, op.At.OpTime.String()), slog.String(keyNS, string(op.Target)), slog.String(keyID, showID(op.ID)))
	return true, nil
}

// create creates a collection of the metadata: a transaction that did would conflict with those of other lanes.
func (a *Applier) create(ctx context.Context, name string) error {
	cmd := bsoncore.NewDocumentBuilder().AppendString("create", name).Build()
	_, err := a.cfg.Target.Call(ctx, mongo.Command{DB: a.cfg.MetaDB, Body: mongo.WithMajority(bson.Raw(cmd))})
	if err != nil && !servererr.IsNamespaceThere(err) {
		return fmt.Errorf("create the collection %s.%s: %w", a.cfg.MetaDB, name, err)
	}
	return nil
}

func (l *learned) add(key oversizedKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.marked == nil {
		l.marked = map[oversizedKey]struct{}{}
	}
	l.marked[key] = struct{}{}
	l.any.Store(true)
}

// oneMarked applies one operation on a document that may be set aside, or has to be inserted.
func (w *writer) oneMarked(ctx context.Context, c conn, op *plan.Op, t *tally) error {
	t.docs++
	doc, oversized, err := w.readOversized(ctx, c, op)
	found := oversized
	if err == nil && !oversized {
		doc, found, err = look(ctx, c, op.Target, op.ID)
	}
	if err != nil {
		return err
	}
	upsert := oversized || op.Upsert
	switch {
	case op.Kind == oplog.KindDelete:
		doc = nil
	case op.Kind == oplog.KindInsert:
		doc, upsert = op.O, true
	case !found && !op.Upsert:
		t.ignored++
		return nil
	default:
		if !found {
			doc = bson.Raw(bsoncore.BuildDocument(nil,
				bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(op.ID.Type), Data: op.ID.Value})))
		}
		if doc, err = update.Apply(doc, op.O); err != nil {
			return opError(op, err)
		}
	}
	if oversized {
		if err := w.removeOversized(ctx, c, op); err != nil {
			return err
		}
	}
	switch {
	case doc == nil:
		pw, err := plan.One(*op, w.cfg.Plan)
		if err == nil {
			_, err = w.statements(ctx, c, &pw)
		}
		return w.refusedOrNil(ctx, op, err)
	case len(doc) > maxDocument:
		return w.storeOversized(ctx, c, op, doc)
	default:
		return w.replace(ctx, c, op, doc, upsert)
	}
}

func (w *writer) refusedOrNil(ctx context.Context, op *plan.Op, err error) error {
	if err == nil {
		return nil
	}
	return w.refused(ctx, op, err)
}

// appendOversizedID appends the fields of an oversized document's _id, without the part, each with
// a prefix.
func (w *writer) appendOversizedID(dst []byte, prefix string, op *plan.Op) []byte {
	key := keyOf(op)
	dst = bsoncore.AppendStringElement(dst, prefix+"link", w.cfg.Link)
	dst = bsoncore.AppendBinaryElement(dst, prefix+"uuid", bson.TypeBinaryUUID, key.uuid[:])
	return bsoncore.AppendBinaryElement(dst, prefix+"id", 0, []byte(key.id))
}

// readOversized returns the oversized document of an operation, false if there is none.
func (w *writer) readOversized(ctx context.Context, c conn, op *plan.Op) (bson.Raw, bool, error) {
	filter := bsoncore.BuildDocument(nil, w.appendOversizedID(nil, "_id.", op))
	// A reply has at least one piece, whatever its size.
	cmd := bsoncore.NewDocumentBuilder().AppendString("find", metadata.Oversized).AppendDocument("filter", filter).
		AppendDocument("sort", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()).Build()
	reply, err := c.read(ctx, mongo.Command{DB: w.cfg.MetaDB, Body: bson.Raw(cmd)})
	var doc []byte
	for err == nil {
		var pieces []bson.Raw
		var cursor int64
		if pieces, cursor, err = batchOf(reply); err != nil {
			break
		}
		for _, piece := range pieces {
			_, part, ok := piece.Lookup("doc").BinaryOK()
			if !ok {
				return nil, false, fmt.Errorf("read the oversized document of %s: a piece without data", op.Target)
			}
			doc = append(doc, part...)
		}
		if cursor == 0 {
			return doc, len(doc) > 0, rawbson.Validate(orEmpty(doc))
		}
		reply, err = c.read(ctx, getMore(oplog.NewNamespace(w.cfg.MetaDB, metadata.Oversized), cursor))
	}
	return nil, false, err
}

func orEmpty(doc bson.Raw) bson.Raw {
	if len(doc) == 0 {
		return bson.Raw{rawbson.MinSize, 0, 0, 0, 0}
	}
	return doc
}

// removeOversized removes the pieces of an oversized document.
func (w *writer) removeOversized(ctx context.Context, c conn, op *plan.Op) error {
	return writeOversized(ctx, c, metadata.Delete(w.cfg.MetaDB, metadata.Oversized, func(dst []byte) []byte {
		return w.appendOversizedID(dst, "_id.", op)
	}))
}

// storeOversized stores a document in pieces.
func (w *writer) storeOversized(ctx context.Context, c conn, op *plan.Op, doc bson.Raw) error {
	for part := 0; len(doc) > 0; part++ {
		piece := doc[:min(len(doc), oversizedPart)]
		doc = doc[len(piece):]
		stored := metadata.Document(func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
				return bsoncore.AppendInt32Element(w.appendOversizedID(dst, "", op), "part", int32(part))
			})
			return metadata.AppendRaw(dst, "doc", piece)
		})
		if err := writeOversized(ctx, c, metadata.Write(w.cfg.MetaDB, "insert", metadata.Oversized, "documents", stored)); err != nil {
			return err
		}
	}
	return nil
}

func writeOversized(ctx context.Context, c conn, cmd mongo.Command) error {
	reply, err := c.write(ctx, cmd)
	if err == nil {
		_, err = mongo.Written(reply)
	}
	return err
}

// loadOversized reads which documents an earlier attempt has set aside.
func (a *Applier) loadOversized(ctx context.Context) error {
	if !a.meetsCopy() {
		return nil
	}
	keys, err := a.allOversized(ctx)
	for _, key := range keys {
		a.learned.add(key)
	}
	return err
}

// allOversized lists the oversized documents of the link, each once.
func (a *Applier) allOversized(ctx context.Context) ([]oversizedKey, error) {
	cmd := bsoncore.NewDocumentBuilder().AppendString("find", metadata.Oversized).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendString("_id.link", a.cfg.Link).AppendInt32("_id.part", 0).Build()).
		AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()).Build()
	docs, err := catalog.ReadAll(ctx, a.cfg.Target, a.cfg.MetaDB, bson.Raw(cmd))
	if err != nil {
		return nil, fmt.Errorf("read the oversized documents in %s.%s: %w", a.cfg.MetaDB, metadata.Oversized, err)
	}
	keys := make([]oversizedKey, len(docs))
	for i, doc := range docs {
		_, uuid, _ := doc.Lookup("_id", "uuid").BinaryOK()
		_, id, ok := doc.Lookup("_id", "id").BinaryOK()
		if !ok || len(uuid) != len(keys[i].uuid) || len(id) == 0 {
			return nil, fmt.Errorf("read the oversized documents in %s.%s: an invalid document: %s", a.cfg.MetaDB, metadata.Oversized, doc)
		}
		keys[i] = oversizedKey{oplog.UUID(uuid), string(bytes.Clone(id))}
	}
	return keys, nil
}

// errLarge reports a document that a copy cannot have at its end.
var errLarge = errors.New("it is larger than " + strconv.Itoa(maxDocument) + " bytes, though the copy is at its end, and the source has no such document; copy the collection again")

// checkOversized returns an error if a document is set aside at the end of a copy. Documents of
// collections that are dropped, or left out for a resync, are forgotten.
func (d *dispatcher) checkOversized(ctx context.Context) error {
	keys, err := d.allOversized(ctx)
	if err != nil || len(keys) == 0 {
		return err
	}
	for _, key := range keys {
		ns, exists, err := d.named(ctx, key.uuid)
		if err != nil {
			return err
		}
		if _, in := d.cfg.Scope.Source(ns); exists && in {
			id := bson.RawValue{Type: bson.Type(key.id[0]), Value: []byte(key.id[1:])}
			if done, err := d.endResized(ctx, ns, id); err != nil {
				return err
			} else if done {
				continue
			}
			return &DivergenceError{NS: ns, ID: id, OpTime: d.cfg.CopiedUntil, What: errLarge.Error()}
		}
	}
	reply, err := mongo.Twice(d.cfg.Target).Call(ctx, metadata.Majority(metadata.Delete(d.cfg.MetaDB, metadata.Oversized,
		func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", d.cfg.Link) })))
	if err == nil {
		_, err = mongo.Written(reply)
	}
	if err != nil {
		return fmt.Errorf("delete the oversized documents of collections that are gone, or left out: %w", err)
	}
	return nil
}

// named finds the collection of the target with a UUID.
func (d *dispatcher) named(ctx context.Context, id oplog.UUID) (oplog.Namespace, bool, error) {
	names, err := mongo.Databases(ctx, d.cfg.Target)
	if err != nil {
		return "", false, err
	}
	for _, name := range names {
		docs, err := catalog.List(ctx, d.cfg.Target, name, "")
		if err != nil {
			return "", false, err
		}
		for _, coll := range docs {
			if _, uuid, ok := coll.Lookup("info", "uuid").BinaryOK(); ok && bytes.Equal(uuid, id[:]) {
				return oplog.NewNamespace(name, coll.Lookup("name").StringValue()), true, nil
			}
		}
	}
	return "", false, nil
}
