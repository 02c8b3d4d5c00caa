package command

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/oplog"
)

// bulk is one bulkWrite: operations on several collections, since 8.0.
type bulk struct {
	*writer
	ops []bulkOp
	// in holds the documents of inserts, each at the index of its operation.
	in insertion

	inserted, matched, deleted int
	// batchSize is how many results the reply may have, -1 for as many as fit.
	batchSize  int64
	errorsOnly bool
}

// bulkOp is one operation and its outcome.
type bulkOp struct {
	ns   oplog.Namespace
	kind string
	up   updateStatement
	del  deleteStatement

	n, modified int
	upserted    *bson.RawValue
	tried       bool
}

func runBulkWrite(ctx context.Context, r *request, out *reply) error {
	docs := r.docs["ops"]
	if len(docs) < 1 || len(docs) > maxBatch {
		return servererr.New(servererr.InvalidLength,
			"Write batch sizes must be between 1 and %d. Got %d operations.", maxBatch, len(docs))
	}
	b := &bulk{writer: &writer{r: r, out: out, ordered: true}, ops: make([]bulkOp, len(docs)), batchSize: -1}
	if err := b.parseOptions(len(docs)); err != nil {
		return err
	}
	if err := b.parseAnswer(); err != nil {
		return err
	}
	b.setSession()
	namespaces, err := r.bulkNamespaces()
	if err != nil {
		return err
	}
	b.in.docs = make([]bson.Raw, len(docs))
	for i, doc := range docs {
		if err := b.parseOp(i, doc, namespaces); err != nil {
			return err
		}
	}
	if err := b.authorize(); err != nil {
		return err
	}
	b.ns = b.ops[0].ns
	if err := b.each(ctx, len(b.ops), b.run); err != nil {
		return err
	}
	b.finish()
	return b.answer(ctx)
}

// authorize asks for what the operations take, once for each collection.
func (b *bulk) authorize() error {
	type need struct {
		ns     oplog.Namespace
		action string
	}
	asked := map[need]bool{}
	for i := range b.ops {
		op := &b.ops[i]
		actions := []string{op.kind}
		switch {
		case op.kind == "delete":
			actions[0] = "remove"
		case op.up.upsert:
			actions = append(actions, "insert")
		}
		if b.bypass {
			actions = append(actions, "bypassDocumentValidation")
		}
		for _, action := range actions {
			if n := (need{op.ns, action}); !asked[n] {
				asked[n] = true
				if err := b.r.allowed(action, op.ns.DB(), op.ns.Collection()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// bulkNamespaces reads nsInfo.
func (r *request) bulkNamespaces() ([]oplog.Namespace, error) {
	infos, ok := r.docs["nsInfo"]
	if !ok {
		e, ok := rawbson.Lookup(r.cmd, "nsInfo")
		if !ok {
			return nil, missingField("bulkWrite", "nsInfo")
		}
		var err error
		if infos, err = documentsOf("bulkWrite", "nsInfo", &e); err != nil {
			return nil, err
		}
	}
	list := make([]oplog.Namespace, len(infos))
	for i, doc := range infos {
		e, ok := rawbson.Lookup(doc, "ns")
		text, isText := e.Text()
		if !ok || !isText {
			return nil, missingField("bulkWrite.nsInfo", "ns")
		}
		ns := oplog.Namespace(strings.Clone(text))
		if !ns.IsCollection() || ns.DB() == "local" {
			return nil, servererr.New(servererr.InvalidNamespace, "Invalid namespace specified for bulkWrite: '%s'", ns)
		}
		if r.inTxn() && (ns.DB() == "admin" || ns.DB() == "config") {
			return nil, servererr.New(servererr.OperationNotSupportedInTransaction,
				"Cannot run command against the '%s' database in a transaction.", ns.DB())
		}
		list[i] = ns
	}
	return list, nil
}

// parseOp reads one operation by bringing it into the form that the commands for
// one collection have.
func (b *bulk) parseOp(i int, doc bson.Raw, namespaces []oplog.Namespace) error {
	op := &b.ops[i]
	it := rawbson.NewIter(doc)
	if !it.Next() {
		return servererr.New(servererr.FailedToParse, "BulkWrite operation cannot be empty")
	}
	n, ok := it.Int64()
	if !ok || n < 0 || n >= int64(len(namespaces)) {
		return servererr.New(servererr.BadValue, "BulkWrite ops entry %s has an invalid nsInfo index.", bulkText(doc))
	}
	op.ns, op.kind = namespaces[n], it.Name()
	switch op.kind {
	case "insert":
		e, ok := rawbson.Lookup(doc, "document")
		inserted, isDoc := e.Document()
		if !ok || !isDoc {
			return missingField("bulkWrite.insert", "document")
		}
		stored, err := serverupdate.Options{Tick: b.r.srv.tick}.CheckInsert(inserted)
		if err != nil {
			if b.in.faults == nil {
				b.in.faults = map[int]error{}
			}
			b.in.faults[i] = err
		}
		b.in.docs[i] = stored
		return nil
	case "update":
		return op.up.parse(b.r, renamed(doc, map[string]string{"filter": "q", "updateMods": "u", "constants": "c"}))
	case "delete":
		one := rewritten(doc)
		return op.del.parse(one)
	}
	return servererr.New(servererr.BadValue, "Unrecognized bulkWrite op type: %s", op.kind)
}

func bulkText(doc bson.Raw) string { return doc.String() }

// renamed returns the arguments of an operation under other names, without the
// first.
func renamed(doc bson.Raw, names map[string]string) bson.Raw {
	i, out := bsoncore.AppendDocumentStart(nil)
	it := rawbson.NewIter(doc)
	it.Next()
	for it.Next() {
		name := it.Name()
		if other := names[name]; other != "" {
			name = other
		}
		out = bsoncore.AppendValueElement(out, name, bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	out, _ = bsoncore.AppendDocumentEnd(out, i)
	return out
}

// rewritten returns a delete with limit in place of multi.
func rewritten(doc bson.Raw) bson.Raw {
	i, out := bsoncore.AppendDocumentStart(nil)
	limit := int32(1)
	it := rawbson.NewIter(doc)
	it.Next()
	for it.Next() {
		name := it.Name()
		switch name {
		case "multi":
			if it.Truth() {
				limit = 0
			}
			continue
		case "filter":
			name = "q"
		}
		out = bsoncore.AppendValueElement(out, name, bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	out = bsoncore.AppendInt32Element(out, "limit", limit)
	out, _ = bsoncore.AppendDocumentEnd(out, i)
	return out
}

// run carries out a part of the operations from i on: a run of inserts into one
// collection, or one other operation.
func (b *bulk) run(ops opwrite.Ops, i int, budget *int) (done int, err error) {
	op := &b.ops[i]
	b.ns, b.kind, op.tried = op.ns, op.kind, true
	n, modified, up := b.n, b.modified, len(b.upserted)
	defer func() {
		if op.kind == "insert" {
			return
		}
		op.n += b.n - n
		op.modified += b.modified - modified
		if len(b.upserted) > up {
			op.upserted = &b.upserted[up].id
		}
		if op.kind == "delete" {
			b.deleted += b.n - n
		} else if len(b.upserted) == up {
			b.matched += b.n - n
		}
	}()
	switch op.kind {
	case "insert":
		return b.insertSomeOf(ops, i, budget)
	case "update":
		return b.update(ops, &op.up, i, budget)
	}
	return b.delete(ops, &op.del, i, budget)
}

func (b *bulk) insertSomeOf(ops opwrite.Ops, i int, budget *int) (done int, err error) {
	if err, bad := b.in.faults[i]; bad {
		*budget--
		return 0, err
	}
	limit := i + 1
	for limit < len(b.ops) && limit-i < *budget && b.ops[limit].kind == "insert" && b.ops[limit].ns == b.ops[i].ns {
		limit++
	}
	coll, err := b.existing(ops)
	if err != nil {
		return 0, err
	}
	b.in.next = i
	err = b.insertRun(ops, coll, &b.in, limit)
	done = b.in.next - i
	for k := range done {
		b.ops[i+k].n, b.ops[i+k].tried = 1, true
	}
	b.inserted += done
	*budget -= max(done, 1)
	return done, err
}
