package replay

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// updateOf is an update of applyOps as the write path takes it.
func updateOf(op *oplog.Op, old storage.Record, exists bool) (post bson.Raw, up opwrite.Update, err error) {
	pre := old.Doc
	if !exists {
		pre = storage.IDDocument(op.ID)
	}
	if post, err = update.Apply(pre, op.O); err != nil {
		return nil, up, err
	}
	form, err := update.Classify(op.O)
	if err != nil {
		return nil, up, err
	}
	up.Post = post
	switch form {
	case update.FormDelta:
		up.Delta, err = update.DeltaOf(op.O)
		// With FCV 4.4 there is no such delta to log, but the same change is.
		up.ByPipeline = true
	case update.FormModifiers:
		up.ByPipeline = true
	case update.FormReplacement:
		up.Made = op.O
	}
	return post, up, err
}

// change carries out and logs one command.
func (r *runner) change(op *oplog.Op) error {
	b := r.b
	switch op.Command {
	case oplog.CommandCreate:
		return create(b, op)
	case oplog.CommandDropDatabase:
		return b.DropDatabase(op.NS.DB())
	case oplog.CommandDrop:
		entry, err := op.Drop()
		if err != nil {
			return err
		}
		c, err := resolve(b.View(), op, entry.NS)
		if err != nil {
			return err
		}
		return b.Drop(c)
	case oplog.CommandEmptyCapped:
		ns, err := op.EmptyCapped()
		if err != nil {
			return err
		}
		c, err := resolve(b.View(), op, ns)
		if err != nil {
			return err
		}
		return b.EmptyCapped(c)
	case oplog.CommandRenameCollection:
		return rename(b, op)
	case oplog.CommandDropIndexes:
		entry, err := op.DropIndexes()
		if err != nil {
			return err
		}
		c, err := resolve(b.View(), op, entry.NS)
		if err != nil {
			return err
		}
		return b.DropIndex(c, entry.Name)
	case oplog.CommandCollMod:
		entry, err := op.CollMod()
		if err != nil {
			return err
		}
		c, err := resolve(b.View(), op, entry.NS)
		if err != nil {
			return err
		}
		options, index, spec, err := Modified(c, entry.Changes)
		if err != nil {
			return err
		}
		return b.CollMod(c, options, index, spec, op.O, oldState(c, entry.Changes))
	default:
		return servererr.New(servererr.CommandNotSupported, "The %s operation is not supported in applyOps mode", op.Command)
	}
}

// create makes a collection and logs the create as it was given: without an index
// on _id, if it had none, although one is made.
func create(b *opwrite.Batch, op *oplog.Op) error {
	entry, err := op.Create()
	if err != nil {
		return err
	}
	options, idIndex, err := creation(&entry)
	if err != nil {
		return err
	}
	if _, view := rawbson.Lookup(entry.Options, "viewOn"); view {
		return servererr.New(servererr.NotImplemented, "create of a view in applyOps is not implemented here")
	}
	if _, held := b.View().Collection(entry.NS); held {
		return servererr.New(servererr.NamespaceExists, "a collection '%s' already exists", entry.NS)
	}
	id := op.UI
	if id.IsZero() {
		id = b.NewUUID()
	}
	return b.Raw("c", oplog.NewNamespace(entry.NS.DB(), "$cmd"), &id, op.O, nil, func(u *storage.Unit) error {
		return u.Create(entry.NS, id, options, idIndex)
	})
}

func rename(b *opwrite.Batch, op *oplog.Op) error {
	entry, err := op.RenameCollection()
	if err != nil {
		return err
	}
	c, err := resolve(b.View(), op, entry.From)
	if err != nil {
		return err
	}
	target, taken := b.View().Collection(entry.To)
	if !taken {
		target = nil
	} else if e, ok := rawbson.Lookup(op.O, "dropTarget"); !ok || !e.Truth() || target.UUID == c.UUID {
		return servererr.New(servererr.NamespaceExists, "target namespace exists")
	}
	return b.Rename(c, entry.To, target, entry.StayTemp)
}
