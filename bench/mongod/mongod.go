package mongod

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/bench/workload"
)

// Env names the server binary.
const Env = "MONGOD"

// Set is a real replica set on loopback, of one member and later a second one.
type Set struct {
	URI, Version string
}

// Start starts a set of one member in a folder of its own, which Close removes.
func Start(ctx context.Context, binary string, oplogMB int) (*Set, error) { panic("not written yet") }

// Close ends all of its processes and removes their folder.
func (s *Set) Close() error { panic("not written yet") }

// CatchUp times a real secondary: a second member is added and syncs; it is stopped
// while write makes a backlog; then it is started, and the time is measured from its
// first applied entry to its last.
func (s *Set) CatchUp(ctx context.Context, w workload.Workload, write func(ctx context.Context, uri string) error) (took time.Duration, ops int64, err error) {
	panic("not written yet")
}
