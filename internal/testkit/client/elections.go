package client

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// electionsFor limits ThroughElections: on a loaded machine one election of a set may follow another.
const electionsFor = 5 * time.Minute

// ThroughElections calls try again as long as an election of a set, or a lost connection, is why it fails: members of an
// embedded set elect another primary when a loaded machine delays their heartbeats for a second. A try before the last
// one may have been executed.
func ThroughElections(ctx context.Context, try func() error) error {
	return mongo.Retry{For: electionsFor, Again: Interrupted}.Do(ctx, try)
}

// Interrupted reports whether an election, or a lost connection, is why a command fails.
func Interrupted(err error) bool {
	return mongo.PassesRead(err) || servererr.Classify(err) == servererr.NotPrimary
}
