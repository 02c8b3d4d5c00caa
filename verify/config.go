package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Scope selects the collections to compare, and maps their names: *scope.Scope.
type Scope interface {
	// Target returns the target's name of a namespace of the source, false if it is not
	// mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// Source is the inverse of Target.
	Source(ns oplog.Namespace) (oplog.Namespace, bool)
}

// Overlay returns the options and indexes of a collection of the target as the source has them: with
// what a link defers until cutover. It is the method of ddl.Specs.
type Overlay func(ns oplog.Namespace, options bson.Raw, indexes []bson.Raw) (bson.Raw, []bson.Raw)

// Cut is a consistent cut: at the cluster time Target, the target is the source as of Source.
type Cut struct {
	Source, Target bson.Timestamp
	// At is when its commit was acknowledged.
	At time.Time
}

// Cuts are the consistent cuts of a link. They must be majority-committed.
type Cuts interface {
	// Newest returns the newest cut, false if there is none. It is idempotent.
	Newest(ctx context.Context) (Cut, bool, error)
	// Next returns a cut that was made after the call has begun. It is idempotent.
	Next(ctx context.Context) (Cut, error)
}

// Config has the settings of a Verifier.
type Config struct {
	// Source and Target run commands on the two sides.
	Source, Target mongo.Caller
	// Scope says which namespaces of the source are in the target.
	Scope Scope
	// Deferred reads the options that the link defers; nil if there is no link.
	Deferred func(ctx context.Context) (Overlay, error)
	// Cuts are the link's. Nil means that nothing writes to either side.
	Cuts Cuts
	// Progress stores the progress of the comparison; nil does not. A sample, or a comparison
	// that is not byte for byte, is not stored.
	Progress *Progress
	// Pacer slows reading down; nil does not.
	Pacer clone.Pacer
	// Workers is the number of ranges that are read at a time, if Memory is enough for them.
	// Zero means 4.
	Workers int
	// RangeBytes is the size of a range. Zero means 64 MiB.
	RangeBytes int64
	// Memory limits the bytes of replies, and of documents that wait for their counterpart.
	// Zero means 256 MiB; the minimum is 80 MiB.
	Memory int64
	// Refresh is how old the list of collections may be when the next one is compared; then they
	// are listed again. They are compared one by one, in the order in which they are to be. Zero
	// lists them once, and compares several at a time.
	Refresh time.Duration
	// AnyFieldOrder ignores the order of fields in documents, at any depth.
	AnyFieldOrder bool
	// Sample is the part of the documents that is compared, more than 0 and less than 1; zero
	// compares all.
	Sample float64
	// ShowValues has values in differences.
	ShowValues bool
	// Patience is for how long a side that does not answer is asked again. Zero means a minute.
	Patience time.Duration
	// Waits is called with the error when a side has been asked again for 10 s, and at most every
	// 30 s, whatever is read; it may be nil.
	Waits func(err error)
	// Found is called with each difference, one at a time. An error of it ends the
	// verification.
	Found func(d *Difference) error
	// Checked is called with each collection that is done, one at a time; it may be nil.
	Checked func(c *Collection)
}

const (
	defaultWorkers    = 4
	defaultRangeBytes = 64 << 20
	defaultMemory     = 256 << 20
	// LeastMemory is the minimum of Config.Memory: two replies of each side, and what waits.
	LeastMemory     = 80 << 20
	defaultPatience = time.Minute
	// joinPart is the part (1/n) of a worker's memory for documents that wait for their
	// counterpart.
	joinPart = 8
)

func (c *Config) setDefaults() {
	if c.Workers == 0 {
		c.Workers = defaultWorkers
	}
	if c.RangeBytes == 0 {
		c.RangeBytes = defaultRangeBytes
	}
	if c.Memory == 0 {
		c.Memory = defaultMemory
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	if c.Waits == nil {
		c.Waits = func(error) {}
	}
	if c.Checked == nil {
		c.Checked = func(*Collection) {}
	}
	if c.AnyFieldOrder || c.Sample > 0 {
		c.Progress = nil
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Source == nil || c.Target == nil {
		faults = append(faults, errors.New("verify: no source or no target"))
	}
	if c.Scope == nil {
		faults = append(faults, errors.New("verify: no scope"))
	}
	if c.Progress != nil && c.Cuts == nil {
		faults = append(faults, errors.New("verify: progress is that of a link, which has cuts"))
	}
	if c.Found == nil {
		faults = append(faults, errors.New("verify: nobody takes the differences"))
	}
	if c.Workers < 1 {
		faults = append(faults, fmt.Errorf("verify: %d workers: want 1 or more", c.Workers))
	}
	if c.RangeBytes < 1 {
		faults = append(faults, fmt.Errorf("verify: ranges of %d bytes: want 1 or more", c.RangeBytes))
	}
	if c.Memory < LeastMemory {
		faults = append(faults, fmt.Errorf("verify: %d bytes of memory: want %d or more", c.Memory, int64(LeastMemory)))
	}
	if c.Sample < 0 || c.Sample >= 1 {
		faults = append(faults, fmt.Errorf("verify: a sample of %g: want less than 1", c.Sample))
	}
	return errors.Join(faults...)
}

// workers is how many ranges are read at a time.
func (c *Config) workers() int { return int(max(1, min(int64(c.Workers), c.Memory/LeastMemory))) }

// joinBytes is how many bytes may wait for their counterpart in one range.
func (c *Config) joinBytes() int { return int(c.Memory / int64(c.workers()) / joinPart) }
