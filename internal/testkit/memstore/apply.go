package memstore

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// Mode says what the store may assume about its data.
type Mode uint8

// The two modes.
const (
	// Steady is for data that is exactly what the log was written on.
	Steady Mode = iota + 1
	// InitialSync is for data that may be newer than the log.
	InitialSync
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Steady:
		return "steady"
	case InitialSync:
		return "initial sync"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// fcvID is the _id of the document in admin.system.version that holds the
// feature compatibility version.
const fcvID = "featureCompatibilityVersion"

// Apply applies one operation, which is not part of a transaction, by the rules
// of the server's applier. An error is an [*OpError], and leaves the store as it
// was.
//
// Steady: an insert or update without its collection is an error; an insert of
// an existing document replaces it; an update without its document makes one
// (but not in a capped collection); a delete may find nothing.
//
// InitialSync: the same, but without its collection an insert or update does
// nothing, as does an update without its document unless it is an upsert; a
// change of the feature compatibility version is an error.
//
// Commands that fail as the server tolerates are counted and do nothing, in both
// modes.
func (s *Store) Apply(op *oplog.Op, mode Mode) error {
	if err := s.apply(op, mode); err != nil {
		return opError(op, err)
	}
	return nil
}

func opError(op *oplog.Op, err error) error {
	what := op.Kind.String()
	if op.Kind == oplog.KindCommand {
		what = op.Command.String()
	}
	return &OpError{op.OpTime, what, op.NS, err}
}

func (s *Store) apply(op *oplog.Op, mode Mode) error {
	if mode == InitialSync && ChangesFCV(op) {
		return OplogOperationUnsupported.because("the feature compatibility version changes; start the copy again")
	}
	if op.Kind == oplog.KindNoop {
		return nil
	}
	switch {
	case op.Command == oplog.CommandApplyOps, op.Command == oplog.CommandCommitTransaction, op.Command == oplog.CommandAbortTransaction:
		// They are logged under admin, which may be ignored: that must not lose
		// the operations in them.
		return NeedsApplier.because("operations in a group have to be taken out of it first")
	case s.cfg.Ignore(op.NS):
		return nil
	case op.Kind == oplog.KindCommand:
		return s.command(op, mode)
	default:
		return s.write(op, mode)
	}
}

// ChangesFCV reports whether an operation writes to, or drops, what holds the
// feature compatibility version.
func ChangesFCV(op *oplog.Op) bool {
	const ns = "admin.system.version"
	switch {
	case op.Command == oplog.CommandDrop:
		entry, err := op.Drop()
		return err == nil && entry.NS == ns
	case op.Kind.IsCRUD() && op.NS == ns:
		id, ok := op.ID.StringValueOK()
		return ok && id == fcvID
	default:
		return false
	}
}

// resolve finds the collection of an operation: by its UUID if it has one, and
// only then, since a collection of the same name may be another one.
func (s *Store) resolve(op *oplog.Op, ns oplog.Namespace) (*Collection, error) {
	if !op.UI.IsZero() {
		if c, ok := s.byUUID[op.UI]; ok {
			return c, nil
		}
		return nil, NamespaceNotFound.because("no collection has the UUID %s", op.UI)
	}
	if c, ok := s.byName[ns]; ok {
		return c, nil
	}
	return nil, NamespaceNotFound.because("there is no collection %s", ns)
}

// write applies an insert, update or delete.
func (s *Store) write(op *oplog.Op, mode Mode) error {
	c, err := s.resolve(op, op.NS)
	if err != nil {
		switch {
		case op.UI.IsZero() && s.isView(op.NS):
			return CommandNotSupportedOnView.because("%s is a view", op.NS)
		case op.Kind == oplog.KindDelete:
			s.counters.DeleteWasEmpty++
			return nil
		case mode == InitialSync:
			s.counters.MissingNamespace++
			return nil
		}
		return err
	}
	s.noteID(c, op.ID)
	old, exists := c.get(op.ID)
	switch op.Kind {
	case oplog.KindInsert:
		if exists {
			s.counters.InsertOnExistingDoc++
		}
		c.put(op.O)
		if s.cfg.TrimCapped && c.capped {
			c.trim()
		}
		return nil
	case oplog.KindDelete:
		if exists {
			c.drop(old)
		} else {
			s.counters.DeleteWasEmpty++
		}
		return nil
	default:
		return s.update(c, op, old, mode)
	}
}

func (s *Store) update(c *Collection, op *oplog.Op, old *record, mode Mode) error {
	var base bson.Raw
	switch {
	case old != nil:
		base = old.doc
	default:
		if !op.Upsert {
			s.counters.UpdateOnMissingDoc++
		}
		if c.capped || mode == InitialSync && !op.Upsert {
			return nil
		}
		// The server makes a document of the query, which is the _id, and
		// applies the update to that: what a delta leaves out is lost.
		base = document(field{"_id", op.ID})
	}
	doc, err := update.Apply(base, op.O)
	if err != nil {
		return fmt.Errorf("%w: _id %s: %w", UpdateFailed, op.ID, err)
	}
	c.put(doc)
	if old != nil && s.cfg.OnUpdate != nil {
		s.cfg.OnUpdate(base, op, doc)
	}
	return nil
}

// field is one element of a document that is taken apart.
type field struct {
	name  string
	value bson.RawValue
}

// document puts fields together.
func document(fields ...field) bson.Raw {
	index, dst := bsoncore.AppendDocumentStart(nil)
	for _, f := range fields {
		dst = bsoncore.AppendHeader(dst, bsoncore.Type(f.value.Type), f.name)
		dst = append(dst, f.value.Value...)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, index) // the index is its own
	return bson.Raw(dst)
}
