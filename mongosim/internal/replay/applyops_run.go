package replay

import (
	"errors"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// runner executes a command.
type runner struct {
	b       *opwrite.Batch
	cmd     *applyOpsCommand
	depth   int
	applied int
	results []bool
	failed  bool
}

// reply is the command's reply; err is the error that ended it.
func (r *runner) reply(err error) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "applied", int32(r.applied))
	if refused, ok := errors.AsType[*servererr.Error](refusal(err)); ok {
		doc = bsoncore.AppendInt32Element(doc, "code", int32(refused.Code))
		doc = bsoncore.AppendStringElement(doc, "codeName", refused.Code.String())
		doc = bsoncore.AppendStringElement(doc, "errmsg", refused.Message)
	}
	array, doc := bsoncore.AppendArrayElementStart(doc, "results")
	for i, ok := range r.results {
		doc = bsoncore.AppendBooleanElement(doc, strconv.Itoa(i), ok)
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, array)
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// together executes all operations at one timestamp.
func (r *runner) together() error {
	start, o := bsoncore.AppendDocumentStart(nil)
	array, o := bsoncore.AppendArrayElementStart(o, "applyOps")
	logged := 0
	for i := range r.cmd.ops {
		op := &r.cmd.ops[i]
		if op.Kind == oplog.KindNoop {
			continue
		}
		c, ok := r.b.View().Collection(op.NS)
		if !ok && op.Kind != oplog.KindDelete {
			return errNotAtomic
		}
		doc := r.cmd.docs[i]
		at, element := bsoncore.AppendDocumentElementStart(o, strconv.Itoa(logged))
		element = append(element, doc[4:len(doc)-1]...)
		if ok && op.UI.IsZero() {
			element = bsoncore.AppendBinaryElement(element, "ui", bson.TypeBinaryUUID, c.UUID[:])
		}
		o, _ = bsoncore.AppendDocumentEnd(element, at)
		logged++
	}
	o, _ = bsoncore.AppendArrayEnd(o, array)
	it := rawbson.NewIter(r.cmd.raw)
	for it.Next() {
		switch it.Name() {
		case "applyOps", "preCondition", "bypassDocumentValidation":
		default:
			o = appendElem(o, &it.Elem)
		}
	}
	o, _ = bsoncore.AppendDocumentEnd(o, start)

	a := Applier{opts: Options{TrimCapped: r.b.Dialect().TrimsCapped()}}
	err := r.b.Raw("c", "admin.$cmd", nil, o, nil, func(u *storage.Unit) error {
		for i := range r.cmd.ops {
			op := &r.cmd.ops[i]
			if op.Kind == oplog.KindNoop {
				continue
			}
			r.applied++
			if _, _, err := a.crud(u, op, rules{replace: true, upsert: op.Upsert || r.cmd.alwaysUpsert}); err != nil {
				return err
			}
			r.results = append(r.results, true)
		}
		return nil
	})
	if err != nil {
		// Nothing of it has happened.
		r.results = make([]bool, r.applied)
	}
	return err
}

// singly executes each operation by itself, and continues after one that has
// found no document to update.
func (r *runner) singly() error {
	for i := range r.cmd.ops {
		op := &r.cmd.ops[i]
		if op.Kind == oplog.KindNoop {
			continue
		}
		done, err := true, error(nil)
		if op.Kind == oplog.KindCommand {
			err = r.command(op)
		} else {
			done, err = r.write(op, r.cmd.docs[i])
		}
		if errors.Is(err, storage.ErrWriteConflict) && r.applied > 0 {
			// The caller would start over, repeating operations that are already done
			// and logged.
			err = servererr.New(servererr.WriteConflict, "applyOps cannot wait here for the transaction that operation %d is in conflict with", i)
		}
		r.applied++
		r.results = append(r.results, done && err == nil)
		if err != nil {
			return err
		}
		r.failed = r.failed || !done
	}
	return nil
}

// write executes an insert, update or delete. It returns false for an update
// that found no document.
func (r *runner) write(op *oplog.Op, doc bson.Raw) (done bool, err error) {
	c, err := resolve(r.b.View(), op, op.NS)
	if err != nil {
		if op.Kind == oplog.KindDelete {
			return true, nil
		}
		return false, servererr.New(servererr.NamespaceNotFound,
			"cannot apply insert or update operation on a non-existent namespace %s: %s", op.NS, bsontext.Document(doc))
	}
	old, exists := c.Get(op.ID)
	none := opwrite.Stmt{}
	switch {
	case op.Kind == oplog.KindDelete:
		if !exists {
			return true, nil
		}
		return true, r.b.Delete(c, old, none, opwrite.NoImage)
	case op.Kind == oplog.KindInsert && !exists:
		_, err := r.b.Insert(c, []bson.Raw{op.O}, nil)
		return true, err
	case op.Kind == oplog.KindInsert:
		return true, r.b.Update(c, old, opwrite.Update{Post: op.O}, none)
	}
	post, up, err := updateOf(op, old, exists)
	switch {
	case !exists && !op.Upsert && !r.cmd.alwaysUpsert:
		return false, nil
	case err != nil:
		return false, err
	case !exists:
		_, err := r.b.Insert(c, []bson.Raw{post}, nil)
		return true, err
	case string(old.Doc) == string(post):
		return true, nil
	}
	return true, r.b.Update(c, old, up, none)
}

// command executes a command that changes the catalog.
func (r *runner) command(op *oplog.Op) error {
	if op.Command == oplog.CommandApplyOps {
		_, err := applyOps(r.b, op.O, r.depth+1)
		return err
	}
	err := r.change(op)
	if found, ok := errors.AsType[*servererr.Error](err); ok && found.Code == servererr.NamespaceNotFound &&
		op.Command == oplog.CommandDropDatabase {
		return nil
	}
	return err
}
