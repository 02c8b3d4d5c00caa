package plan

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Mode says what the operations meet.
type Mode uint8

const (
	// ModeExact says that the target is exactly what the log describes. An update of what
	// is not there, or an insert of what is, is a divergence.
	ModeExact Mode = iota + 1
	// ModeCopied says that the target is a copy that was taken while writes went
	// on. What is not there is ignored, an insert of what is there replaces it, a
	// delta meets whatever shape there is.
	ModeCopied
)

// Op is one operation of a document, for one writer.
type Op struct {
	// Op is the operation, views into memory that stays as long as it is in use.
	oplog.Op
	// At is its place in the log.
	At checkpoint.Position
	// Target is where it goes: the namespace as the target knows it. It is no
	// view.
	Target oplog.Namespace
	// Collection is the target's, nil where it does not exist.
	Collection *catalog.Collection
	Mode       Mode
	// Grouped marks an operation of an applyOps that is no transaction: its
	// inserts replace what is there, in either mode.
	Grouped bool
}

// Options say what the target can do.
type Options struct {
	// InternalApply: it has $_internalApplyOplogUpdate (6.0 and newer).
	InternalApply bool
	// Coalesce allows runs on one document to be reduced. Collections that are
	// capped are left as they are.
	Coalesce bool
	// NoGuards forbids statements that find their document only if the fields
	// that they insert are absent: for a log that moves fields, where they fail
	// too often.
	NoGuards bool
	// MaxDocs and MaxBytes bound one command. Zero means 10,000 and 8 MiB.
	MaxDocs, MaxBytes int
}

// Kind is what a Write does.
type Kind uint8

// The kinds of a Write.
const (
	// Insert: Docs are documents.
	Insert Kind = iota + 1
	// Update: Docs are statements {q, u} or {q, u, upsert: true}.
	Update
	// Delete: Docs are statements {q, limit: 1}.
	Delete
	// Modify: the one operation has to be done by reading the document, applying
	// O to it with update.Apply, and writing back what comes out, as Replace
	// builds it. Docs is empty.
	Modify
)

// Write is one command to send.
type Write struct {
	Kind Kind
	NS   oplog.Namespace
	Docs []bson.Raw
	// Ops[i] are the operations, as indexes into Build's argument, that Docs[i]
	// stands for, in order. For Modify it is Ops[0].
	Ops [][]int
	// Ordered is set if a statement must not be tried before those ahead of it
	// in the same command are done.
	Ordered bool
	// MustMatch tells, for updates and Modify in ModeExact, that every statement
	// has to find a document, so that n of the reply is len(Docs).
	MustMatch bool
	// Guarded is set if some statements also ask for the absence of fields. One
	// that finds nothing is then no divergence, nor is it if what comes after it
	// is refused or finds nothing: the operations have to be done again, each with
	// One, after what was done is undone.
	Guarded bool
}

// Plan is what operations come to.
type Plan struct {
	// Writes are to be sent in order.
	Writes []Write
	// Dropped are the operations that need nothing to be sent, ascending: those
	// of documents that were inserted and deleted again. Every other operation is
	// in the Ops of exactly one Write.
	Dropped []int
}
