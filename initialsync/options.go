package initialsync

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
)

// Options says how a new link copies the source's data. A link whose copy is incomplete
// continues it, whatever Wanted says.
type Options struct {
	// Wanted makes a new link start with a copy.
	Wanted bool
	// DropExisting drops existing collections of the target that the copy would write
	// to. Otherwise a new link assumes that there are none.
	DropExisting bool
	// Workers, IndexWorkers, IndexesFirst and RangeBytes are those of Config.
	Workers, IndexWorkers int
	IndexesFirst          bool
	RangeBytes            int64
	// SpoolDir is the folder for the part of the oplog that cannot be applied yet. It
	// is required if there is a copy to make. SpoolBytes limits its size, SpoolFree is
	// the space that must stay free on its disk; zero means the defaults of
	// spool.Config.
	SpoolDir              string
	SpoolBytes, SpoolFree int64
	// SpoolWriter is the Writer of spool.Config.
	SpoolWriter spool.Writer
	// BytesPerSecond and OpsPerSecond are limits, 0 for none.
	BytesPerSecond, OpsPerSecond int64
	// SourceWait is how long there may be no member that can continue a copy, before
	// another copy is started. Default 24 h, as for a server.
	SourceWait time.Duration
	// MaxCopies is the maximum number of copies that one run starts. Default 10, as for
	// a server.
	MaxCopies int64
}

// SetDefaults replaces zero values by the defaults.
func (o *Options) SetDefaults() {
	if o.SourceWait == 0 {
		o.SourceWait = 24 * time.Hour
	}
	if o.MaxCopies == 0 {
		o.MaxCopies = 10
	}
}

// Validate returns an error if an option is missing.
func (o *Options) Validate() error {
	if o.Wanted && o.SpoolDir == "" {
		return errors.New("copy: a folder for the spool is needed")
	}
	return nil
}
