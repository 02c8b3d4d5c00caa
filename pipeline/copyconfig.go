package pipeline

import (
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/pace"
)

// CopyConfig says how a new link copies the source's data. A link whose copy is
// incomplete continues it, whatever Wanted says.
type CopyConfig struct {
	// Wanted makes a new link start with a copy instead of at StartAt.
	Wanted bool
	// DropExisting drops existing collections of the target that the copy would write
	// to. Otherwise a new link assumes that there are none.
	DropExisting bool
	// ReadConcern defaults to clone.Majority.
	ReadConcern clone.ReadConcern
	// Workers, IndexWorkers, IndexesFirst and RangeBytes are those of
	// initialsync.Config.
	Workers, IndexWorkers int
	IndexesFirst          bool
	RangeBytes            int64
	// SpoolDir is the folder for the part of the oplog that cannot be applied yet. It
	// is required if there is a copy to make. SpoolBytes limits its size, SpoolFree is
	// the space that must stay free on its disk; zero means the defaults of
	// spool.Config.
	SpoolDir              string
	SpoolBytes, SpoolFree int64
	// BytesPerSecond and OpsPerSecond are limits, 0 for none.
	BytesPerSecond, OpsPerSecond int64
	// SourceWait is how long the member that is copied may be unreachable before a copy
	// of another member is started. Default 24 h, as for a server.
	SourceWait time.Duration
	// MaxCopies is the maximum number of copies that one run starts. Default 10, as for
	// a server.
	MaxCopies int64
}

func (c *CopyConfig) setDefaults() {
	def(&c.ReadConcern, clone.Majority)
	def(&c.SourceWait, 24*time.Hour)
	def(&c.MaxCopies, 10)
}

func (c *CopyConfig) validate() error {
	var errs []error
	if c.Wanted && c.SpoolDir == "" {
		errs = append(errs, errors.New("copy: a folder for the spool is needed"))
	}
	if c.ReadConcern != clone.Majority && c.ReadConcern != clone.Local {
		errs = append(errs, fmt.Errorf("copy: unknown read concern %q", c.ReadConcern))
	}
	return errors.Join(errs...)
}

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
