// Package spool keeps fetched entries on disk until they are applied.
package spool

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// Config says where a spool is, and how large it may grow.
type Config struct {
	// Dir is the folder; it is made if it is not there. One spool has it alone
	// (a lock file says so).
	Dir string
	// ID says what the spool belongs to: link, instance and number of the copy. A
	// folder with the files of another one is emptied.
	ID string
	// Limit is how many bytes may be on disk. Zero means 64 GiB. MinFree is how
	// many bytes of the disk stay free. Zero means 1 GiB.
	Limit, MinFree int64
	// SegmentBytes is the size of a file. Zero means 64 MiB.
	SegmentBytes int64
	// Memory is the budget of what was read back and is not released, in bytes:
	// what buffer.Config.Limit is to a Queue.
	Memory int64

	Observer event.Observer
	Registry prometheus.Registerer
}

// Spool is a queue on disk. It has the interface of buffer.Queue.
type Spool struct{}

// Open opens a spool, or makes it. It reads all that is there and checks it: a
// file that ends in the middle of a record, or whose last records do not have
// their checksum, is cut there (event Cut); damage anywhere else is a
// *DamagedError.
func Open(cfg Config) (*Spool, error) { panic("not written yet") }

// Close ends it. The files stay.
func (s *Spool) Close() error { panic("not written yet") }

// Remove ends it and removes its files.
func (s *Spool) Remove() error { panic("not written yet") }

// Bounds returns the first and the last entry that it holds, false if none. To go
// on, reading of the source begins at last, and what it hands on first is that
// entry, which the spool has and passes over.
func (s *Spool) Bounds() (first, last oplog.OpTime, ok bool) { panic("not written yet") }

// Store writes replies to disk until in is closed (nil) or ctx is done (its
// cause). While there is no room it takes nothing from in (event Full, Stats),
// and looks again every second, as room may be made by others.
func (s *Spool) Store(ctx context.Context, in <-chan oplog.Reply) error { panic("not written yet") }

// Run does the same and hands on, on out, everything from entry `from` of Start on,
// in order, within the budget of memory, first what is on disk. It closes out. It
// is what buffer.Queue.Run is, but that it also begins where it was told.
func (s *Spool) Run(ctx context.Context, in <-chan oplog.Reply, out chan<- oplog.Reply) error {
	panic("not written yet")
}

// Start says which entry Run hands on first: one that the spool has, or the first
// that comes in. ErrMissing if it has entries and not that one.
func (s *Spool) Start(from oplog.OpTime) error { panic("not written yet") }

// Release gives back bytes of memory of what was handed on, like buffer.Queue.
func (s *Spool) Release(bytes int64) { panic("not written yet") }

// Forget lets files go that have only entries before the given one: it is the
// FetchFrom of a checkpoint that a majority of the target has. It may be called
// while Run or Store run.
func (s *Spool) Forget(before oplog.OpTime) error { panic("not written yet") }

// Stats returns the state of memory, as of a Queue.
func (s *Spool) Stats() buffer.Stats { panic("not written yet") }

// DiskStats is what is on disk.
type DiskStats struct {
	Bytes, Limit, Free int64
	Entries            int64
	First, Last        oplog.OpTime
	// Full tells that there is no room, and why.
	Full bool
	Why  string
}

// Disk returns what is on disk.
func (s *Spool) Disk() DiskStats { panic("not written yet") }

// WaitFor returns once an entry at or behind ts was stored.
func (s *Spool) WaitFor(ctx context.Context, ts bson.Timestamp) error { panic("not written yet") }

// Commands reads the stored entries behind after, up to and including until, that
// are commands (op c), in order, and calls yield with each. The entry is a view,
// valid until yield returns. It may be called while Store runs.
func (s *Spool) Commands(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	panic("not written yet")
}
