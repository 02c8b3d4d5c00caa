// Package catalog is what is known of the target's collections while a link
// writes to it. Nobody else changes them meanwhile, so it is read once and then
// kept up by what is applied.
package catalog

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// Type is what a namespace is.
type Type uint8

// The types of a namespace.
const (
	TypeCollection Type = iota + 1
	TypeView
	TypeTimeseries // the view over a time-series collection's buckets
)

// Collection is one namespace of the target. It is immutable: a change makes a
// new one.
type Collection struct {
	NS   oplog.Namespace
	Type Type
	// UUID is the target's own, zero for a view.
	UUID oplog.UUID
	// Options are those of listCollections.
	Options bson.Raw
	// Ordered tells that operations have to reach it in the log's order, all
	// through one writer: it is capped, has a collation that makes one of
	// different _ids, or has a unique index besides that on _id.
	Ordered bool
	// Capped tells that it is capped.
	Capped bool
	// Direct tells that transactions cannot write to it: capped collections,
	// buckets of time-series collections, system collections.
	Direct bool
}

// Catalog is the target's collections. It is safe for concurrent use.
type Catalog struct{}

// Load reads the collections, and whether they have unique indexes, of the
// databases given.
func Load(ctx context.Context, target call.Caller, dbs []string) (*Catalog, error) {
	panic("not written yet")
}

// Get returns what is known of a namespace; false where it does not exist. A
// database that was not loaded is read on the first question about it.
func (c *Catalog) Get(ctx context.Context, ns oplog.Namespace) (*Collection, bool, error) {
	panic("not written yet")
}
