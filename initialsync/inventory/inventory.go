// Package inventory finds out what is to be copied, and under which names it was
// there when the copy began.
package inventory

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// Scope decides what is mirrored, and under which name.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// TargetDBs returns all databases that collections of a database go to.
	TargetDBs(db string) []string
}

// Log is the part of the log that was read since the copy began: *spool.Spool.
type Log interface {
	WaitFor(ctx context.Context, ts bson.Timestamp) error
	Commands(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error
}

// Config says what is listed.
type Config struct {
	// Source runs commands on the member that is copied.
	Source call.Caller
	Scope  Scope
	Log    Log
	// Begin is the entry behind which the log is applied.
	Begin oplog.OpTime
}

// Inventory is what is to be copied.
type Inventory struct {
	// Collections are in CollectionPlanned; the largest first. They have the names
	// of Begin. A collection that did not exist then is not among them: the log
	// makes it, and fills it.
	Collections []checkpoint.CopyCollection
	// Views are the documents of the source's system.views as they were listed
	// ({_id: "db.view", viewOn, pipeline, collation}), but for the views of time
	// series, which come with their buckets; those whose name a collection had at
	// Begin are left to the log.
	Views []bson.Raw
}

// Take lists the source.
func Take(ctx context.Context, cfg Config) (*Inventory, error) { panic("not written yet") }

// CreateOp returns the operation of the log that makes a collection of the copy:
// the entry `create` with its options and its index on _id.
func CreateOp(c *checkpoint.CopyCollection, at oplog.OpTime) (*oplog.Op, error) {
	panic("not written yet")
}

// IndexesOp returns the operation that builds indexes on it, all in one command
// (the entry `commitIndexBuild`).
func IndexesOp(c *checkpoint.CopyCollection, indexes []bson.Raw, at oplog.OpTime) (*oplog.Op, error) {
	panic("not written yet")
}

// ViewOp returns the operation that makes a view: the insert into system.views.
func ViewOp(view bson.Raw, at oplog.OpTime) (*oplog.Op, error) { panic("not written yet") }

// DropOp returns the operation that drops a collection (the entry `drop`).
func DropOp(ns oplog.Namespace, at oplog.OpTime) (*oplog.Op, error) { panic("not written yet") }
