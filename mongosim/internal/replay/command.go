package replay

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// acceptable are the errors that the server's applier takes for work already
// done, by command.
func acceptable(c oplog.Command) []servererr.Code {
	switch c {
	case oplog.CommandCreate:
		return []servererr.Code{servererr.NamespaceExists}
	case oplog.CommandCreateIndexes, oplog.CommandStartIndexBuild, oplog.CommandCommitIndexBuild:
		return []servererr.Code{servererr.NamespaceNotFound, servererr.IndexAlreadyExists}
	case oplog.CommandAbortIndexBuild, oplog.CommandDrop, oplog.CommandDropDatabase, oplog.CommandEmptyCapped:
		return []servererr.Code{servererr.NamespaceNotFound}
	case oplog.CommandDropIndexes, oplog.CommandCollMod:
		return []servererr.Code{servererr.NamespaceNotFound, servererr.IndexNotFound}
	case oplog.CommandRenameCollection:
		return []servererr.Code{servererr.NamespaceNotFound, servererr.NamespaceExists}
	default:
		return nil
	}
}

// command executes a command that changes the catalog.
func (a *Applier) command(u *storage.Unit, op *oplog.Op) error {
	err := a.run(u, op)
	if refusal, ok := errors.AsType[*servererr.Error](err); ok && slices.Contains(acceptable(op.Command), refusal.Code) {
		return nil
	}
	return err
}

func (a *Applier) run(u *storage.Unit, op *oplog.Op) error {
	if a.skipIndexes {
		switch op.Command {
		case oplog.CommandCreateIndexes, oplog.CommandStartIndexBuild, oplog.CommandCommitIndexBuild,
			oplog.CommandAbortIndexBuild, oplog.CommandDropIndexes:
			return nil
		default:
		}
	}
	switch op.Command {
	case oplog.CommandCreate:
		return a.create(u, op)
	case oplog.CommandDrop:
		entry, err := op.Drop()
		if err != nil {
			return err
		}
		c, err := resolve(u.View(), op, entry.NS)
		if err != nil {
			return err
		}
		return u.Drop(c.UUID)
	case oplog.CommandDropDatabase:
		for _, c := range u.View().Collections(op.NS.DB()) {
			if err := u.Drop(c.UUID); err != nil {
				return err
			}
		}
		u.CloseDatabase(op.NS.DB())
		return nil
	case oplog.CommandRenameCollection:
		return a.rename(u, op)
	case oplog.CommandEmptyCapped:
		ns, err := op.EmptyCapped()
		if err != nil {
			return err
		}
		c, err := resolve(u.View(), op, ns)
		if err != nil {
			return err
		}
		return u.Truncate(c.UUID)
	case oplog.CommandCreateIndexes:
		return createIndex(u, op)
	case oplog.CommandStartIndexBuild, oplog.CommandCommitIndexBuild, oplog.CommandAbortIndexBuild:
		return a.build(u, op)
	case oplog.CommandDropIndexes:
		return dropIndex(u, op)
	case oplog.CommandCollMod:
		return a.collMod(u, op)
	case oplog.CommandDBCheck:
		return nil // a check of the data, for members to log
	case oplog.CommandImportCollection:
		return op.ImportError()
	default:
		return fmt.Errorf("no rule for the command %s", op.Command)
	}
}

// create makes a collection. One of the same UUID is that collection already,
// maybe under a name that it got later: then it gets this one back. A collection
// that holds the name got it later too, and is moved away; where the copy is not
// newer than the log there is no later, so that is an error.
func (a *Applier) create(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.Create()
	if err != nil {
		return err
	}
	if op.UI.IsZero() {
		return errors.New("a collection without UUID")
	}
	options, idIndex, err := creation(&entry)
	if err != nil {
		return err
	}
	current, exists := u.View().ByUUID(op.UI)
	if exists && current.NS == entry.NS {
		return nil
	}
	if exists && current.NS.DB() != entry.NS.DB() {
		return fmt.Errorf("the collection %s is in another database already, as %s", op.UI, current.NS)
	}
	if holder, held := u.View().Collection(entry.NS); held {
		if !a.opts.Tolerant {
			return fmt.Errorf("%s is the collection %s", entry.NS, holder.UUID)
		}
		if err := moveAway(u, holder, "create"); err != nil {
			return err
		}
	}
	if exists {
		return u.Rename(op.UI, entry.NS)
	}
	return u.Create(entry.NS, op.UI, options, idIndex)
}

func moveAway(u *storage.Unit, c *storage.Collection, purpose string) error {
	return u.Rename(c.UUID, opwrite.TemporaryName(c.NS.DB(), c.UUID, purpose))
}

// creation returns the options and the index on _id that a create entry makes.
// Where the entry has no index, a member makes the oldest version of it, as old
// members did.
func creation(entry *oplog.Create) (options, idIndex bson.Raw, err error) {
	if options, err = storedOptions(entry.Options); err != nil {
		return nil, nil, err
	}
	if entry.IDIndex != nil {
		return options, entry.IDIndex, nil
	}
	if e, ok := rawbson.Lookup(options, "clusteredIndex"); ok && e.Truth() {
		return options, nil, nil
	}
	if e, ok := rawbson.Lookup(options, "collation"); ok {
		collation, isDoc := e.Document()
		if !isDoc {
			return nil, nil, fmt.Errorf("collation is %s, not a document", bsontext.TypeName(e.Type))
		}
		return options, storage.IDIndex(2, collation), nil // the oldest version that has collations
	}
	return options, storage.IDIndex(1, nil), nil
}

// rename gives a collection a new name. Whatever the entry calls it, the
// collection is the one with the entry's UUID. If that is gone, only the
// collection that was to be replaced is dropped.
func (a *Applier) rename(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.RenameCollection()
	if err != nil {
		return err
	}
	var doomed *storage.Collection
	if !entry.DropTarget.IsZero() {
		doomed, _ = u.View().ByUUID(entry.DropTarget)
	}
	source, err := resolve(u.View(), op, entry.From)
	switch {
	case err != nil && doomed != nil:
		return u.Drop(doomed.UUID)
	case err != nil:
		return err
	case source.NS.DB() != entry.To.DB():
		return fmt.Errorf("%s is in another database than %s", source.NS, entry.To)
	case doomed != nil && doomed.UUID == source.UUID:
		return fmt.Errorf("%s would replace itself", source.NS)
	}
	if doomed != nil {
		if err := u.Drop(doomed.UUID); err != nil {
			return err
		}
	}
	holder, held := u.View().Collection(entry.To)
	if held && holder.UUID == source.UUID {
		return nil
	}
	if held {
		if !a.opts.Tolerant {
			return fmt.Errorf("%s is the collection %s", entry.To, holder.UUID)
		}
		if err := moveAway(u, holder, "rename"); err != nil {
			return err
		}
	}
	if err := u.Rename(source.UUID, entry.To); err != nil || entry.StayTemp {
		return err
	}
	if _, temp := rawbson.Lookup(source.Options, "temp"); temp {
		return u.SetOptions(source.UUID, newFields(source.Options).unset("temp").document())
	}
	return nil
}
