package plan

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Mode says which documents the operations meet.
type Mode uint8

const (
	// ModeExact says that the target is exactly as the log describes. An update of a
	// missing document, or an insert of an existing one, is a divergence.
	ModeExact Mode = iota + 1
	// ModeCopied says that the target is a copy that was taken during writes. An
	// operation on a missing document is ignored, an insert of an existing one replaces
	// it, a delta accepts any shape.
	ModeCopied
)

// Op is one operation on a document, for one writer.
type Op struct {
	// Op is the operation, with views into memory that stays unchanged while it is in
	// use.
	oplog.Op
	// At is its position in the log.
	At checkpoint.Position
	// Target is the namespace on the target. It is not a view.
	Target oplog.Namespace
	// Collection is the target's, nil where it does not exist.
	Collection *catalog.Collection
	// Seed, if not 0, is oplog.HashNamespace of Target.
	Seed uint32
	// Hash, if not 0, is oplog.HashID of the operation's _id, seeded with the hash of
	// Target.
	Hash uint32
	Mode Mode
	// Grouped marks an operation of an applyOps that is not a transaction: its inserts
	// replace existing documents, in either mode.
	Grouped bool
}

// Options describe the target.
type Options struct {
	// InternalApply: the target has $_internalApplyOplogUpdate (6.0 and newer).
	InternalApply bool
	// NoFieldOperators: the target has no $setField, $unsetField and $getField (before 5.0).
	NoFieldOperators bool
	// Coalesce allows reduction of operations on one document. Capped collections are
	// excepted.
	Coalesce bool
	// NoGuards forbids statements that match their document only if the fields that they
	// insert are absent: for a log that moves fields, where they fail too often.
	NoGuards bool
	// NoDollars makes a Modify of an update that writes a name below the top level that starts with a dollar, NoPipelines one of each
	// pipeline: a target before 5.0 refuses one that leaves such a name in the document.
	NoDollars, NoPipelines bool
	// MaxDocs and MaxBytes limit one command. Zero means 10,000 and 8 MiB.
	MaxDocs, MaxBytes int
	// MinMass is from how many on updates, or deletes, that differ in the _id alone become one
	// statement with a list of _ids, MaxMass how many a statement has at most. Zero means
	// 10 and 500. MaxMassBytes limits the bytes of a list; zero means 1 MiB.
	MinMass, MaxMass, MaxMassBytes int
}

// Kind is the kind of a Write.
type Kind uint8

// The kinds of a Write.
const (
	// Insert: Docs are documents.
	Insert Kind = iota + 1
	// Update: Docs are statements {q, u}, {q, u, upsert: true}, or {q, u, multi: true}
	// with a list of _ids in q.
	Update
	// Delete: Docs are statements {q, limit: 1}, or {q, limit: 0} with a list of _ids in q.
	Delete
	// Modify: the operation must be executed by reading the document, applying O to it
	// with update.Apply, and writing the result, as Replace builds it. Docs is empty. With
	// NoDollars or NoPipelines there may be several operations on the document, of any kind, each to be executed with One.
	Modify
)

// Write is one command to send.
type Write struct {
	Kind Kind
	NS   oplog.Namespace
	Docs []bson.Raw
	// Ops[i] are the operations, as indexes into Build's argument, that Docs[i]
	// stands for, in order. For Modify they are Ops[0].
	Ops [][]int
	// Documents is how many documents the statements are for: one each, but for those with
	// a list of _ids.
	Documents int
	// Ordered is set if a statement must not be tried before those ahead of it in the
	// same command are done.
	Ordered bool
	// MustMatch reports, for updates and Modify in ModeExact, that every statement must
	// match a document, or all in its list, so that n of the reply is Documents.
	MustMatch bool
	// Guarded is set if some statements also require the absence of fields. If one
	// matches nothing, or a later statement is then refused or matches nothing, that is
	// not a divergence: the operations must be undone and repeated, each with One.
	Guarded bool
}

// Plan is the result of Build.
type Plan struct {
	// Writes are to be sent in order.
	Writes []Write
	// Dropped are the operations for which nothing is sent, ascending: those on documents
	// that were inserted and deleted again. Every other operation is in the Ops of
	// exactly one Write.
	Dropped []int
}
