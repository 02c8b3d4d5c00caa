package preflight_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

// shuttingDown is a server that answers one command as one does that shuts down. It records all.
type shuttingDown struct {
	mongo.Caller
	at   string
	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// Call implements mongo.Caller.
func (s *shuttingDown) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	name := cmd.DB + " " + cmd.Body.Index(0).String()
	s.mu.Lock()
	s.seen[name] = true
	s.mu.Unlock()
	if name == s.at {
		return nil, servererr.New(servererr.ShutdownInProgress, "the server is in quiesce mode and will shut down")
	}
	return s.Caller.Call(ctx, cmd)
}

// TestPassingIsNoVerdict: an error that passes, and has not passed in the time for which a check is retried, is no failed check: those say
// what to do, as to copy everything again, and supervisors do not start the process again after them.
func TestPassingIsNoVerdict(t *testing.T) {
	t.Parallel()
	const never = "never"
	// check makes the checks, and returns the commands of both sides.
	check := func(side int, at string) (seen [2]map[string]bool) {
		synctest.Test(t, func(t *testing.T) {
			var sets [2]*shuttingDown
			for i, name := range []string{"source", "target"} {
				sets[i] = &shuttingDown{Caller: newServer(t, name), at: never, seen: map[string]bool{}}
				seen[i] = sets[i].seen
			}
			sets[side].at = at
			r, err := preflight.Run(t.Context(), preflight.Config{
				Source: sets[0], Target: sets[1], Scope: must.Get(scope.New(scope.Config{}))(t), Link: "l", Copy: true, SpoolDir: t.TempDir(),
			}, nil)
			for _, f := range r.Findings {
				if at != never && f.Level == preflight.Fail {
					t.Errorf("side %d, %s: %s (the checks: %v)", side, at, f, err)
				}
			}
		})
		return seen
	}
	for side, commands := range check(0, never) {
		if len(commands) == 0 {
			t.Fatalf("side %d: no commands", side)
		}
		for _, at := range slices.Sorted(maps.Keys(commands)) {
			check(side, at)
		}
	}
}
