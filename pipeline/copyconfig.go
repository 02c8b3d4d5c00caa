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

// CopyConfig says how a new link copies what the source has. A link whose copy is
// not complete goes on with it, whatever Wanted says.
type CopyConfig struct {
	// Wanted tells that a new link begins with a copy, and not with StartAt.
	Wanted bool
	// DropExisting drops what the target has where the copy goes. Otherwise a new
	// link takes it that nothing is there.
	DropExisting bool
	// ReadConcern is clone.Majority by default.
	ReadConcern clone.ReadConcern
	// Workers, IndexWorkers, IndexesFirst and RangeBytes are those of
	// initialsync.Config.
	Workers, IndexWorkers int
	IndexesFirst          bool
	RangeBytes            int64
	// SpoolDir is the folder for the log that cannot be applied yet; it has to be
	// given if there is a copy to make. SpoolBytes bounds what is in it, SpoolFree
	// is what has to stay free on its disk; zero means the defaults of
	// spool.Config.
	SpoolDir              string
	SpoolBytes, SpoolFree int64
	// BytesPerSecond and OpsPerSecond are limits, 0 for none.
	BytesPerSecond, OpsPerSecond int64
	// SourceWait is how long the member that is copied may be away before the
	// copy is begun anew with another one. Default 24 h, as for a server.
	SourceWait time.Duration
	// MaxCopies is how many copies one run begins at most. Default 10, as for a
	// server.
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

// CopySnapshot is how the copy of a link stands.
type CopySnapshot struct {
	checkpoint.Copy
	// Progress is that of the copy of documents, as of this process; nil once it
	// is in CopyPhase checkpoint.Replaying.
	Progress *initialsync.Progress
	// Spool is what is on disk, nil where it is not in use any more.
	Spool *spool.DiskStats
	Pace  pace.Status
}

// Window is what is left of the source's oplog for the link.
type Window struct {
	// Oldest is the member's oldest entry, Position what the link would read
	// from if it were started anew now, At when that was asked.
	Oldest, Position bson.Timestamp
	At               time.Time
	// Left is how long it takes until Oldest passes Position at the pace that it
	// has; negative where it does not move, or that is not known yet.
	Left time.Duration
}
