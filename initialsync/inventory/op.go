package inventory

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// logged returns the operation that is parsed from an oplog entry as the server writes
// it.
func logged(at oplog.OpTime, op string, ns oplog.Namespace, ui oplog.UUID, o bsoncore.Document) (*oplog.Op, error) {
	doc := document().AppendString("op", op).AppendString("ns", string(ns))
	if !ui.IsZero() {
		doc.AppendBinary("ui", bson.TypeBinaryUUID, ui[:])
	}
	doc.AppendDocument("o", o).
		AppendTimestamp("ts", at.TS.T, at.TS.I).
		AppendInt64("t", at.Term).
		AppendInt64("v", 2).
		AppendDateTime("wall", int64(at.TS.T)*1000)
	e, err := oplog.ParseEntry(bson.Raw(doc.Build()))
	if err != nil {
		return nil, err
	}
	return &e.Op, nil
}

// command returns the operation of a command on a collection.
func command(at oplog.OpTime, ns oplog.Namespace, ui oplog.UUID, o *builder) (*oplog.Op, error) {
	return logged(at, "c", oplog.NewNamespace(ns.DB(), "$cmd"), ui, o.Build())
}

// CreateOp returns the operation that creates a collection of the copy: the entry
// `create` with its options and its index on _id.
func CreateOp(c *progress.Collection, at oplog.OpTime) (*oplog.Op, error) {
	o := document().AppendString("create", c.NS.Collection())
	it := rawbson.NewIter(c.Options)
	for c.Options != nil && it.Next() {
		appendElem(o, &it.Elem)
	}
	if c.Options != nil && it.Err() != nil {
		return nil, fmt.Errorf("make the create of %s: its options: %w", c.NS, it.Err())
	}
	if c.IDIndex != nil {
		o.AppendDocument("idIndex", bsoncore.Document(c.IDIndex))
	}
	op, err := command(at, c.NS, c.UUID, o)
	if err != nil {
		return nil, fmt.Errorf("make the create of %s: %w", c.NS, err)
	}
	return op, nil
}

// IndexesOp returns the operation that builds indexes on it, all in one command (the
// entry `commitIndexBuild`).
func IndexesOp(c *progress.Collection, indexes []bson.Raw, at oplog.OpTime) (*oplog.Op, error) {
	specs := bsoncore.NewArrayBuilder()
	for _, spec := range indexes {
		specs.AppendDocument(bsoncore.Document(spec))
	}
	// A build is identified by its start and its end. This one has no start, so any id
	// will do.
	o := document().AppendString("commitIndexBuild", c.NS.Collection()).
		AppendBinary("indexBuildUUID", bson.TypeBinaryUUID, c.UUID[:]).
		AppendArray("indexes", specs.Build())
	op, err := command(at, c.NS, c.UUID, o)
	if err == nil {
		_, err = op.IndexBuild()
	}
	if err != nil {
		return nil, fmt.Errorf("make the building of indexes of %s: %w", c.NS, err)
	}
	return op, nil
}

// ViewOp returns the operation that creates a view: the insert into system.views.
func ViewOp(view bson.Raw, at oplog.OpTime) (*oplog.Op, error) {
	e, _ := rawbson.Lookup(view, "_id")
	name, ok := e.Text()
	ns := oplog.Namespace(name)
	if !ok || !ns.IsCollection() {
		return nil, errors.New("make the insert of a view: its _id is no namespace")
	}
	op, err := logged(at, "i", oplog.NewNamespace(ns.DB(), "system.views"), oplog.UUID{}, bsoncore.Document(view))
	if err != nil {
		return nil, fmt.Errorf("make the insert of the view %s: %w", ns, err)
	}
	return op, nil
}

// DropOp returns the operation that drops a collection (the entry `drop`).
func DropOp(ns oplog.Namespace, at oplog.OpTime) (*oplog.Op, error) {
	op, err := command(at, ns, oplog.UUID{}, document().AppendString("drop", ns.Collection()))
	if err != nil {
		return nil, fmt.Errorf("make the drop of %s: %w", ns, err)
	}
	return op, nil
}

// viewDocument returns the document of system.views for a listed view.
func viewDocument(l *listed) (bson.Raw, error) {
	doc := document().AppendString("_id", string(l.ns))
	known := []string{"viewOn", "pipeline", "collation"}
	it := rawbson.NewIter(l.options)
	for it.Next() {
		if !slices.Contains(known, it.Name()) {
			return nil, fmt.Errorf("list the view %s: %w: an option %q", l.ns, oplog.ErrUnsupported, it.Name())
		}
		appendElem(doc, &it.Elem)
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("list the view %s: %w", l.ns, err)
	}
	return bson.Raw(doc.Build()), nil
}

func appendElem(doc *builder, e *rawbson.Elem) {
	doc.AppendValue(e.Name(), bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
}
