// Package initialsync copies a source that is being written to.
package initialsync

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// Commands carries out operations on the target: *ddl.Executor, with what a copy
// may meet.
type Commands interface {
	// Apply carries op out; repeating it does no harm.
	Apply(ctx context.Context, op *oplog.Op) error
	// HoldIndex notes an index that cannot be built: the log's later commands on
	// it find it there.
	HoldIndex(ctx context.Context, op *oplog.Op, index string) error
}

// Config says how a source is copied.
type Config struct {
	// Source runs commands on the pinned member, Target on the target's primary.
	Source, Target call.Caller
	Hold           *checkpoint.Hold
	Scope          inventory.Scope
	Log            inventory.Log
	// NewCommands makes one for each worker: they are for one goroutine.
	NewCommands func(ctx context.Context) (Commands, error)
	ReadConcern clone.ReadConcern
	// Workers is how many ranges are copied at a time, IndexWorkers on how many
	// collections indexes are built at a time. Zero means 8 and 2; no more workers
	// than the link has lanes.
	Workers, IndexWorkers int
	// IndexesFirst builds indexes before the documents are there.
	IndexesFirst bool
	// RangeBytes, FlushDocs, FlushBytes and Memory are those of clone.Config.
	RangeBytes            int64
	FlushDocs, FlushBytes int
	Memory                int64
	// Pacer may be nil.
	Pacer clone.Pacer

	Observer event.Observer
	Registry prometheus.Registerer
}

// Copier makes the copy of a Hold's State().Copy, or what is left of it.
type Copier struct{}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Copier, error) { panic("not written yet") }

// Run copies: clears the target if that is still to be done, lists, creates
// collections, copies documents, builds indexes, makes views, each as far as it is
// not done. When it returns nil, everything is in the target and in the metadata
// but the change to checkpoint.Replaying.
func (c *Copier) Run(ctx context.Context) error { panic("not written yet") }

// Step is what a copy is doing.
type Step string

// The steps of a copy.
const (
	StepClear   Step = "clearing"
	StepList    Step = "listing"
	StepCreate  Step = "creating collections"
	StepCopy    Step = "copying documents"
	StepIndexes Step = "building indexes"
	StepViews   Step = "creating views"
	StepDone    Step = "copied"
)

// Progress is how far a copy is.
type Progress struct {
	Step Step
	// Since is when this process began with the copy.
	Since time.Time
	// Collections, Docs and Bytes are done, of Total... by the estimate of the
	// listing.
	Collections, TotalCollections int
	Docs, TotalDocs               int64
	Bytes, TotalBytes             int64
	// DocsPerSecond and BytesPerSecond are of the last ten seconds or so.
	DocsPerSecond, BytesPerSecond float64
	// Left is how long the documents take at that rate, negative if unknown.
	Left time.Duration
	// Current are the collections that are being worked on, the largest first, ten
	// at most.
	Current []CollectionProgress
	// Indexes are built, of TotalIndexes; Failed could not be built.
	Indexes, TotalIndexes int
	Failed                []FailedIndex
}

// CollectionProgress is how far one collection is.
type CollectionProgress struct {
	NS                 oplog.Namespace
	Docs, TotalDocs    int64
	Bytes, TotalBytes  int64
	Ranges, DoneRanges int
	// Indexes tells that its indexes are being built.
	Indexes bool
}

// FailedIndex is an index that could not be built.
type FailedIndex struct {
	NS        oplog.Namespace
	Name, Why string
}

// Progress returns how far it is. It is safe for concurrent use.
func (c *Copier) Progress() Progress { panic("not written yet") }
