package ends

import (
	"context"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
)

// Kind is what an embedded end is.
type Kind string

// The kinds of embedded ends.
const (
	// Empty is an embedded set without data.
	Empty Kind = "empty"
	// Played is an embedded set that has the log of a workload after First, and its
	// initial documents.
	Played Kind = "played"
	// Acknowledging is a Null.
	Acknowledging Kind = "null"
)

// What describes an embedded end to start.
type What struct {
	Kind Kind `json:"kind"`
	// Seed is the set's; those of two sets must differ.
	Seed int64 `json:"seed"`
	// Calibrated is of an Acknowledging end: it costs what a real server does.
	Calibrated bool `json:"calibrated,omitempty"`
	// Members is how many members an Empty set has; zero means one.
	Members int `json:"members,omitempty"`
	// OplogBytes is the size of its oplog; zero means the default of the embedded
	// set, and for Played the size of the log.
	OplogBytes int64 `json:"oplogBytes,omitempty"`
	// Workload is the workload of a Played set.
	Workload workload.Workload `json:"workload"`
}

// Served is an end in another process.
type Served struct {
	URI string `json:"uri"`
	// Last is the newest entry of a Played set.
	Last oplog.OpTime `json:"last"`
	// Stop ends it.
	Stop func() `json:"-"`
}

// Serve starts an embedded end in a process of its own, so that its cost is not
// counted as the program's. The command line provides one.
type Serve func(ctx context.Context, what What) (Served, error)
