// Package ddl carries out the commands of the log, and the writes to system.views,
// on the target. It is always alone: whoever calls it has waited for everything
// ahead in the log and lets nothing behind it start.
package ddl

import (
	"context"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// Scope decides what is mirrored, and under which name.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
}

// UniqueIndexes is what is done with unique indexes.
type UniqueIndexes uint8

const (
	// Relaxed builds them without their uniqueness, and keeps the whole spec in
	// the metadata until cutover.
	Relaxed UniqueIndexes = iota + 1
	// Serialized builds them as they are; their collections are Ordered.
	Serialized
)

// Config says how commands are carried out.
type Config struct {
	Target  call.Caller
	Catalog *catalog.Catalog
	Scope   Scope
	// MetaDB and Link say where held index specs are kept: collection "held".
	MetaDB, Link  string
	UniqueIndexes UniqueIndexes
	Observer      event.Observer
}

// Executor carries out commands, one at a time.
type Executor struct{}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Executor, error) { panic("not written yet") }

// Again says what an operation may meet.
type Again uint8

const (
	// Once: the target is exactly what was left.
	Once Again = iota + 1
	// Maybe: the operation may have been carried out before, as a whole or in
	// part; nothing behind it has been.
	Maybe
	// Copied: the target is a copy taken while writes went on.
	Copied
)

// InScope tells whether op does anything on the target.
func (e *Executor) InScope(op *oplog.Op) (bool, error) { panic("not written yet") }

// Apply carries out one command (not applyOps, commitTransaction or
// abortTransaction) or one write to a system.views. What it does is committed by
// a majority of the target when it returns. Errors: *oplog.EntryError for what
// cannot be mirrored, *DivergedError for a target that is not what was left,
// *ResyncError for a collection that has to be copied, and the target's.
func (e *Executor) Apply(ctx context.Context, op *oplog.Op, again Again) error {
	panic("not written yet")
}
