package memstore

import (
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// acceptable returns the errors that the server's applier tolerates for a
// command.
func acceptable(c oplog.Command) []Code {
	switch c {
	case oplog.CommandCreate:
		return []Code{NamespaceExists}
	case oplog.CommandCreateIndexes, oplog.CommandStartIndexBuild, oplog.CommandCommitIndexBuild:
		return []Code{NamespaceNotFound, IndexAlreadyExists}
	case oplog.CommandAbortIndexBuild, oplog.CommandDrop, oplog.CommandDropDatabase, oplog.CommandEmptyCapped:
		return []Code{NamespaceNotFound}
	case oplog.CommandDropIndexes, oplog.CommandCollMod:
		return []Code{NamespaceNotFound, IndexNotFound}
	case oplog.CommandRenameCollection:
		return []Code{NamespaceNotFound, NamespaceExists}
	default:
		return nil
	}
}

// command applies a command and counts the errors that are acceptable.
func (s *Store) command(op *oplog.Op, mode Mode) error {
	err := s.run(op, mode)
	code, ok := errors.AsType[Code](err)
	if ok && slices.Contains(acceptable(op.Command), code) {
		s.counters.AcceptableErrors++
		return nil
	}
	return err
}

func (s *Store) run(op *oplog.Op, mode Mode) error {
	switch op.Command {
	case oplog.CommandCreate:
		return s.create(op, mode)
	case oplog.CommandDrop:
		return s.dropCollection(op)
	case oplog.CommandDropDatabase:
		for _, c := range s.Collections() {
			if c.ns.DB() == op.NS.DB() {
				s.remove(c)
			}
		}
		return nil
	case oplog.CommandRenameCollection:
		return s.rename(op)
	case oplog.CommandEmptyCapped:
		ns, err := op.EmptyCapped()
		if err != nil {
			return err
		}
		c, err := s.resolve(op, ns)
		if err == nil {
			c.empty()
		}
		return err
	case oplog.CommandCreateIndexes:
		return s.createIndexes(op, mode)
	case oplog.CommandStartIndexBuild:
		return s.startIndexBuild(op)
	case oplog.CommandCommitIndexBuild:
		return s.commitIndexBuild(op)
	case oplog.CommandAbortIndexBuild:
		return s.abortIndexBuild(op)
	case oplog.CommandDropIndexes:
		return s.dropIndexes(op)
	case oplog.CommandCollMod:
		return s.collMod(op)
	case oplog.CommandDBCheck:
		return nil // a check of the data, for members to log
	case oplog.CommandImportCollection:
		return op.ImportError()
	default:
		return InvalidOptions.because("no rule for the command")
	}
}

// create makes a collection. One of the same UUID is that collection already,
// maybe under a name that it got later: then it gets this one back. A collection
// that holds the name got it later too, and is moved away; in Steady mode that
// is an error.
func (s *Store) create(op *oplog.Op, mode Mode) error {
	entry, err := op.Create()
	if err != nil {
		return err
	}
	if err := checkOptions(entry.Options); err != nil {
		return err
	}
	current, exists := s.byUUID[op.UI]
	exists = exists && !op.UI.IsZero()
	if exists && current.ns == entry.NS {
		s.counters.CreateOnExisting++
		return nil
	}
	holder, held := s.byName[entry.NS]
	switch {
	case held && (mode == Steady || op.UI.IsZero()):
		return NamespaceExists.because("%s is the collection %s", entry.NS, holder.uuid)
	case s.isView(entry.NS):
		return NamespaceExists.because("%s is a view", entry.NS)
	case exists && current.ns.DB() != entry.NS.DB():
		return InvalidNamespace.because("the collection %s is in another database already, as %s", op.UI, current.ns)
	case held:
		s.moveAway(holder, "create")
	}
	if exists {
		s.counters.CreateOnExisting++
		s.move(current, entry.NS)
		return nil
	}
	if _, isView := rawbson.Lookup(entry.Options, "viewOn"); isView {
		s.createView(entry)
		return nil
	}
	uuid := op.UI
	if uuid.IsZero() {
		uuid = s.newUUID()
	}
	c := newCollection(entry.NS, uuid, listedOptions(entry.Options))
	if !c.clustered {
		c.indexes = []index{newIndex(idIndex(&entry))}
	}
	s.add(c)
	return nil
}

// idIndex returns the spec of the index on _id. Where the entry has none, a
// member makes the oldest version of it, as the members of old did.
func idIndex(entry *oplog.Create) bson.Raw {
	if entry.IDIndex != nil {
		return entry.IDIndex
	}
	spec := []field{
		{"v", int32Value(1)},
		{"key", documentValue(document(field{"_id", int32Value(1)}))},
		{"name", stringValue("_id_")},
	}
	if collation, ok := rawbson.Lookup(entry.Options, "collation"); ok {
		spec[0].value = int32Value(2) // the oldest that has collations
		spec = append(spec, field{"collation", collation.Raw()})
	}
	return document(spec...)
}

func (s *Store) dropCollection(op *oplog.Op) error {
	entry, err := op.Drop()
	if err != nil {
		return err
	}
	c, err := s.resolve(op, entry.NS)
	if err == nil {
		s.remove(c)
	}
	return err
}

// rename gives a collection a new name. Whatever the entry calls it, the
// collection is the one with the entry's UUID. If that is gone, rename only
// drops the collection that was to be replaced.
func (s *Store) rename(op *oplog.Op) error {
	entry, err := op.RenameCollection()
	if err != nil {
		return err
	}
	doomed, hasDoomed := s.byUUID[entry.DropTarget]
	hasDoomed = hasDoomed && !entry.DropTarget.IsZero()
	source, err := s.resolve(op, entry.From)
	if err != nil {
		if hasDoomed {
			s.remove(doomed)
			return nil
		}
		return err
	}
	holder, held := s.byName[entry.To]
	switch {
	case source.ns.DB() != entry.To.DB():
		return InvalidNamespace.because("%s is in another database than %s", source.ns, entry.To)
	case s.isView(entry.To):
		return NamespaceExists.because("%s is a view", entry.To)
	case hasDoomed && doomed == source:
		return InvalidOptions.because("%s would replace itself", source.ns)
	}
	if hasDoomed {
		s.remove(doomed)
	}
	if held && holder == source {
		return nil
	}
	if held && (!hasDoomed || holder != doomed) {
		s.moveAway(holder, "rename")
	}
	s.move(source, entry.To)
	if !entry.StayTemp {
		source.setOptions(withoutOption(source.options, "temp"))
	}
	return nil
}
