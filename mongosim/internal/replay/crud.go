package replay

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// errFCV is a change of the feature compatibility version while a copy is made.
var errFCV = servererr.New(servererr.OplogOperationUnsupported,
	"Applying operation on feature compatibility version document not supported in initial sync")

// rules say which states of the data an operation tolerates.
type rules struct {
	// replace turns an insert of a document that is there into its replacement.
	replace bool
	// upsert makes an update insert where there is no document.
	upsert bool
}

// resolve finds the collection of an operation: by its UUID if it has one, and
// only then, since a collection of the same name may be another one.
func resolve(v storage.View, op *oplog.Op, ns oplog.Namespace) (*storage.Collection, error) {
	if !op.UI.IsZero() {
		if c, ok := v.ByUUID(op.UI); ok {
			return c, nil
		}
		return nil, servererr.New(servererr.NamespaceNotFound, "No namespace with UUID %s", op.UI)
	}
	if c, ok := v.Collection(ns); ok {
		return c, nil
	}
	return nil, servererr.New(servererr.NamespaceNotFound, "ns not found: %s", ns)
}

// crud executes an insert, update or delete. It returns the document before and
// after, nil if there is none.
func (a *Applier) crud(u *storage.Unit, op *oplog.Op, r rules) (pre, post bson.Raw, err error) {
	c, err := resolve(u.View(), op, op.NS)
	if err != nil {
		if op.Kind == oplog.KindDelete || a.opts.Tolerant {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	switch op.Kind {
	case oplog.KindInsert:
		pre, err = insert(u, c, op, r)
		if err == nil && a.opts.TrimCapped && c.CappedBytes > 0 {
			err = opwrite.Trim(u, c.UUID)
		}
		return pre, op.O, err
	case oplog.KindDelete:
		old, ok := c.Get(op.ID)
		if !ok {
			return nil, nil, nil
		}
		return old.Doc, nil, u.Delete(c.UUID, old.ID)
	case oplog.KindUpdate:
		return a.update(u, c, op, r)
	default:
		return nil, nil, fmt.Errorf("a %s is no change of a document", op.Kind)
	}
}

func insert(u *storage.Unit, c *storage.Collection, op *oplog.Op, r rules) (pre bson.Raw, err error) {
	_, err = u.Insert(c.UUID, op.O)
	if !r.replace || !errors.Is(err, servererr.New(servererr.DuplicateKey, "")) {
		return nil, err
	}
	old, ok := c.Get(op.ID)
	if !ok {
		return nil, err
	}
	return old.Doc, u.Update(c.UUID, old.ID, op.O)
}

func (a *Applier) update(u *storage.Unit, c *storage.Collection, op *oplog.Op, r rules) (pre, post bson.Raw, err error) {
	old, ok := c.Get(op.ID)
	switch {
	case ok:
		pre = old.Doc
	case c.CappedBytes > 0:
		return nil, nil, nil
	case r.upsert:
		// The server makes a document of the query, which is the _id, and applies
		// the update to that.
		pre = storage.IDDocument(op.ID)
	case a.opts.Tolerant:
		return nil, nil, nil
	default:
		return nil, nil, servererr.New(servererr.UpdateOperationFailed,
			"Failed to apply update: no document has the _id of %s", bsontext.Document(op.O2))
	}
	post, err = update.Apply(pre, op.O)
	if err != nil {
		return nil, nil, fmt.Errorf("update _id %s: %w", op.ID, err)
	}
	if !ok {
		_, err = u.Insert(c.UUID, post)
		return nil, post, err
	}
	return pre, post, u.Update(c.UUID, old.ID, post)
}

// changesFCV reports whether an operation writes to, or drops, the collection
// of the feature compatibility version.
func changesFCV(op *oplog.Op) bool {
	const ns = "admin.system.version"
	if op.Command == oplog.CommandDrop {
		entry, err := op.Drop()
		return err == nil && entry.NS == ns
	}
	id, ok := op.ID.StringValueOK()
	return op.Kind.IsCRUD() && op.NS == ns && ok && id == "featureCompatibilityVersion"
}
