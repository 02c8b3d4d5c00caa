package pipeline

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/pace"
)

// CopySnapshot is the state of a link's copy.
type CopySnapshot struct {
	checkpoint.Copy
	// Progress is the progress of copying documents, as of this process; nil from
	// CopyPhase checkpoint.Replaying on.
	Progress *initialsync.Progress
	// Spool is the state of the spool on disk, nil if it is no longer in use.
	Spool *spool.DiskStats
	Pace  pace.Status
}

// Window is the part of the source's oplog that is left for the link.
type Window struct {
	// Oldest is the member's oldest entry, Position the entry from which the link would
	// read after a restart, At the time of the query.
	Oldest, Position bson.Timestamp
	At               time.Time
	// Left is the time until Oldest passes Position at its present pace; negative if it
	// does not move, or the pace is not known yet.
	Left time.Duration
}
