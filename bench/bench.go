package bench

import (
	"io"
	"time"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/workload"
)

// Config says what to measure. Zero fields mean the stated defaults.
type Config struct {
	Workload workload.Workload
	// Source is a connection string; empty means an embedded set, and memory the
	// log in memory, for the run pipeline only.
	Source string
	// Target is a connection string; empty means an embedded set, null a server that
	// acknowledges everything (the runs apply and ceiling), calibrated one that also costs
	// what a real server does (apply and catch-up). The run pipeline has none.
	Target string
	// Rounds is the number of rounds. Default 3.
	Rounds int
	// Writers is the number of lanes, and of the ceiling's goroutines. Default 16.
	Writers int
	// BatchOps is the batcher's limit, default 5,000; FlushDocs that of a
	// transaction of a writer, default the applier's.
	BatchOps, FlushDocs int
	// CeilingBatch is how many operations a bulk write of the plain driver has.
	// Default 500.
	CeilingBatch int
	// TakeRate limits the operations per second that the run pipeline discards;
	// below the rate of the source the buffer fills up. Zero means no limit.
	TakeRate float64
	// BufferBytes is the budget of the buffer, where that is measured without a link.
	// Default 256 MiB.
	BufferBytes int64
	// Memory is the memory of the process in which a link is measured, as --memory of the
	// program. Default 320 MiB.
	Memory int64
	// Rate is the pace of the run mirror, in operations per second, default 1,000;
	// Duration is for how long. Default 10 s.
	Rate     float64
	Duration time.Duration
	// CutEvery is the time between consistent cuts, in the runs apply and mirror. Zero means
	// none.
	CutEvery time.Duration
	// CloneWorkers is how many ranges are copied at a time. Default 8.
	CloneWorkers int
	// Mongod is a server's binary. Where it is given, real servers are started in
	// place of embedded sets, and a real secondary is timed on the same backlog as the link.
	Mongod string
	// Serve, if set, runs embedded ends in processes of their own, so that what they
	// cost is not counted as ours.
	Serve ends.Serve
	// Overwrite permits dropping the workload's databases on ends that a
	// connection string names.
	Overwrite bool
	// Profile is a file for the CPU profile of the last round. Empty means none.
	Profile string
	// Progress, if not nil, is called with a line for each step.
	Progress io.Writer
}
