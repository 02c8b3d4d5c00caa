package bench

import (
	"context"
	"io"
	"time"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
)

// Config says what is measured. Zero fields mean the defaults given.
type Config struct {
	Workload workload.Workload
	// Source is a connection string; empty means an embedded set, and memory the
	// log in memory, for the run pipeline only.
	Source string
	// Target is a connection string; empty means an embedded set, null a server
	// that acknowledges everything, discard no server at all (the run pipeline).
	Target string
	// Rounds is how often it is done. Default 3.
	Rounds int
	// Writers is the number of lanes, and of the ceiling's goroutines. Default 16.
	Writers int
	// BatchOps is the batcher's limit, default 5,000; FlushDocs that of a
	// transaction of a writer, default the applier's.
	BatchOps, FlushDocs int
	// CeilingBatch is how many operations a bulk write of the plain driver has.
	// Default 500.
	CeilingBatch int
	// BufferBytes is the budget of what was read. Default 256 MiB.
	BufferBytes int64
	// Rate is the pace of the run mirror, in operations per second, default 1,000;
	// Duration is for how long. Default 10 s.
	Rate     float64
	Duration time.Duration
	// CloneWorkers is how many ranges are copied at a time. Default 8.
	CloneWorkers int
	// Mongod is a server's binary, for a real secondary beside the catch-up. Empty
	// means none.
	Mongod string
	// Overwrite allows to drop the databases of the workload at the ends that a
	// connection string names.
	Overwrite bool
	// Profile is a file for the CPU profile of the last round. Empty means none,
	// unless Profiled.
	Profile  string
	Profiled bool
	// Progress hears what is being done, in lines. Nil is nobody.
	Progress io.Writer
}

// Pipeline measures fetching, parsing, batching, hashing and handing out, into
// nothing.
func Pipeline(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// Apply measures the applier alone: its batches are in memory.
func Apply(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// Ceiling measures the same operations written by the plain driver.
func Ceiling(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// Beside measures Apply and Ceiling in turns on the same target.
func Beside(ctx context.Context, c Config) (apply, ceiling *result.Run, err error) {
	panic("not written yet")
}

// Mirror measures a whole link while its source is written to at a pace: how long
// after its commit an operation is applied.
func Mirror(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// CatchUp measures a whole link from its start behind a backlog to its end.
func CatchUp(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// Secondary measures how long a secondary takes for the same backlog: a real one
// from c.Mongod, or else a member of an embedded set.
func Secondary(ctx context.Context, c Config) (*result.Run, error) { panic("not written yet") }

// Clone measures a copy of the workload's documents, and the same by as many bare
// loops of the driver.
func Clone(ctx context.Context, c Config) (ours, bare *result.Run, err error) {
	panic("not written yet")
}
