// Package plan turns what a writer has to apply into the commands that it sends:
// runs on one document are reduced to their net effect where that is provably
// the same, deltas become updates that a client may send, and what is left is
// grouped by namespace and kind.
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
	// ModeExact: the target is exactly what the log describes. An update of what
	// is not there, or an insert of what is, is a divergence.
	ModeExact Mode = iota + 1
	// ModeCopied: the target is a copy that was taken while writes went on. What
	// is not there is ignored, an insert of what is there replaces it, a delta
	// meets whatever shape there is.
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
	// inserts replace what is there, in either mode, and its updates insert
	// where there is nothing if Upsert says so.
	Grouped bool
}

// Options say what the target can do.
type Options struct {
	// InternalApply: it has $_internalApplyOplogUpdate (6.0 and newer).
	InternalApply bool
	// Coalesce allows runs on one document to be reduced.
	Coalesce bool
	// MaxDocs and MaxBytes bound one command. Zero means 10,000 and 8 MiB.
	MaxDocs, MaxBytes int
}

// Kind is what a Write does.
type Kind uint8

// The kinds of a Write.
const (
	// Insert: Docs are documents.
	Insert Kind = iota + 1
	// Update: Docs are statements {q, u, upsert, multi: false}.
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
	// Ordered tells that a statement must not be tried before those ahead of it
	// in the same command are done.
	Ordered bool
	// MustMatch tells, for updates in ModeExact, that every statement has to
	// find a document, so that n of the reply is len(Docs).
	MustMatch bool
}

// Build plans operations, in the log's order, of one writer. The Writes are to
// be sent in order. Nothing of one _id ever changes its order, and nothing at
// all of a namespace that is Ordered. The result holds views into the operations.
// An error names the operation that cannot be planned.
func Build(ops []Op, opt Options) ([]Write, error) { panic("not written yet") }

// One plans a single operation, in the form that does the least in one step, for
// finding out which operation of a failed flush is at fault, and for doing the
// others. Strict tells the modes apart as Build does.
func One(op Op, opt Options) (Write, error) { panic("not written yet") }

// Replace returns the update statement that makes the document with this _id
// exactly doc, whatever its field names and timestamps. With upsert it makes it
// where there is none.
func Replace(id bson.RawValue, doc bson.Raw, upsert bool) bson.Raw { panic("not written yet") }

// Command returns the body of the command for a Write: without its documents,
// which go beside it under the name that sequence says.
func (w *Write) Command() (body bson.Raw, sequence string) { panic("not written yet") }
