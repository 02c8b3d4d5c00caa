package bench

import (
	"io"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/workload"
)

// Config says what is measured. Zero fields mean the defaults given.
type Config struct {
	Workload workload.Workload
	// Source is a connection string; empty means an embedded set, and memory the
	// log in memory, for the run pipeline only.
	Source string
	// Target is a connection string; empty means an embedded set, null a server
	// that acknowledges everything (the runs pipeline, apply and ceiling). The run
	// pipeline has discard too, which is no server at all, and what empty means there.
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
	// TakeRate is how many operations a second the run pipeline takes into nothing;
	// with fewer than come the buffer fills up. Zero means all that come.
	TakeRate float64
	// BufferBytes is the budget of what was read. Default 256 MiB.
	BufferBytes int64
	// Rate is the pace of the run mirror, in operations per second, default 1,000;
	// Duration is for how long. Default 10 s.
	Rate     float64
	Duration time.Duration
	// CloneWorkers is how many ranges are copied at a time. Default 8.
	CloneWorkers int
	// Mongod is a server's binary. Where it is given, real servers are started in
	// place of embedded sets, and a real secondary is timed on the same backlog as the link.
	Mongod string
	// Serve, if set, runs embedded ends in processes of their own, so that what they
	// cost is not counted as ours.
	Serve ends.Serve
	// Overwrite allows to drop the databases of the workload at the ends that a
	// connection string names.
	Overwrite bool
	// Profile is a file for the CPU profile of the last round. Empty means none,
	// unless Profiled.
	Profile  string
	Profiled bool
	// Progress is called with lines that say what is being done. It may be nil.
	Progress io.Writer
}
