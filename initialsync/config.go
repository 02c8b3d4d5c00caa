package initialsync

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Commands carries out operations on the target: *ddl.Executor, with the cases that
// occur in a copy only.
type Commands interface {
	// Apply carries out op. It is idempotent.
	Apply(ctx context.Context, op *oplog.Op) error
	// DeferBuild records an index that cannot be built as deferred: later commands of
	// the oplog on it find it there. It is idempotent.
	DeferBuild(ctx context.Context, op *oplog.Op, index string) error
	// LeaveView records a view of a database of the source that is not copied, with its
	// definition: the oplog may correct it. It is idempotent.
	LeaveView(ctx context.Context, db string, def bson.Raw, why string) error
}

// Scope selects the namespaces to mirror, and their names on the target.
type Scope interface {
	inventory.Scope
	// Source is the inverse of Target.
	Source(target oplog.Namespace) (oplog.Namespace, bool)
}

// Config says how a source is copied.
type Config struct {
	// Source runs commands on the pinned member, Target on the target's primary.
	Source, Target mongo.Caller
	Checkpoint     *checkpoint.Link
	Scope          Scope
	Log            inventory.InsertLog
	// MetaDB and Link locate the deferred options to clear. An empty MetaDB means
	// "replicator".
	MetaDB, Link string
	// NewCommands creates the Commands of one worker; each is used by one goroutine.
	// All must have the same Scope: a database is cleared by a command that drops
	// everything the Scope maps to it. They should share what they cache about the
	// target.
	NewCommands func(ctx context.Context) (Commands, error)
	// Workers is how many ranges are copied concurrently, IndexWorkers on how many
	// collections indexes are built concurrently. Zero means 8 and 2. Workers is
	// limited to the number of the link's lanes.
	Workers, IndexWorkers int
	// IndexesFirst builds indexes before the documents are copied.
	IndexesFirst bool
	// RangeBytes, FlushDocs, FlushBytes and Memory are those of clone.Config.
	RangeBytes            int64
	FlushDocs, FlushBytes int
	Memory                int64
	// NoHoles: a capped collection is copied from its beginning whenever its copy was
	// interrupted. It is for a source whose members trim such collections by themselves
	// and not through the oplog (feature compatibility version 4.4), and for a target
	// that does not let clients delete from them (before 6.0, conservatively):
	// documents that the source has discarded are then discarded by the target upon the
	// same inserts, or not at all.
	NoHoles bool
	// Pacer may be nil.
	Pacer clone.Pacer

	// Enter is called before something is written that should be finished once it has begun: a
	// flush, a collection, indexes. It waits while the link is paused. Leave is called after it.
	// May be nil.
	Enter    func(context.Context) (leave func(), err error)
	Observer event.Observer
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	if c.MetaDB == "" {
		c.MetaDB = "replicator"
	}
	if c.Workers == 0 {
		c.Workers = 8
	}
	if c.IndexWorkers == 0 {
		c.IndexWorkers = 2
	}
}

func (c *Config) validate() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, errors.New("initialsync: "+what))
		}
	}
	need(c.Source != nil, "no source")
	need(c.Target != nil, "no target")
	need(c.Scope != nil, "no scope")
	need(c.Log != nil, "no log")
	need(c.NewCommands != nil, "nothing to carry out commands with")
	need(c.Link != "", "the link has no name")
	if c.Workers < 0 || c.IndexWorkers < 0 {
		faults = append(faults, fmt.Errorf("initialsync: %d workers, %d for indexes", c.Workers, c.IndexWorkers))
	}
	return errors.Join(faults...)
}
