package preflight_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/scope"
)

var errAway = errors.New("nobody answers")

// silent is a server that does not answer, for half a minute.
type silent struct{}

// Call implements mongo.Caller.
func (silent) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	select {
	case <-time.After(30 * time.Second):
		return nil, errAway
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// slow is a server that takes long to list its databases.
type slow struct{ mongo.Caller }

// Call implements mongo.Caller.
func (s slow) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == "listDatabases" {
		time.Sleep(6 * time.Second)
	}
	return s.Caller.Call(ctx, cmd)
}

// TestSlowChecksAreTold: the check of the target's content is told, too, if it takes long.
func TestSlowChecksAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told []string
		cfg := preflight.Config{Source: newServer(t, "source"), Target: slow{newServer(t, "target")}, Scope: must.Get(scope.New(scope.Config{}))(t), Link: "l"}
		cfg.Waits = func(what string) { told = append(told, what) }
		must.Get(preflight.Run(t.Context(), cfg, nil))(t)
		if want := []string{"content of the target"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestWaitsAreTold: while a server does not answer, it is told once what the checks wait for; not if all answer.
func TestWaitsAreTold(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var told []string
			began := time.Now()
			cfg := preflight.Config{Source: newServer(t, "source"), Target: silent{}, Scope: must.Get(scope.New(scope.Config{}))(t), Link: "l"}
			if there {
				cfg.Target = newServer(t, "target")
			}
			cfg.Waits = func(what string) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, what)
				if after := time.Since(began); after > 10*time.Second {
					t.Errorf("told after %s", after)
				}
			}
			_, err := preflight.Run(t.Context(), cfg, nil)
			mu.Lock()
			defer mu.Unlock()
			if want := map[bool][]string{false: {"target"}}[there]; !slices.Equal(told, want) || errors.Is(err, errAway) == there {
				t.Errorf("told %q, want %q: %v", told, want, err)
			}
		})
	}
}
