// Package client connects a test to a set.
package client

import (
	"context"

	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// T is a *testing.T or a *testing.B.
type T interface {
	must.T
	// Context is done when the test ends.
	Context() context.Context
	// Cleanup calls f when the test ends.
	Cleanup(f func())
}

// Open connects to a set until the test ends.
func Open(t T, cfg driver.Config) *driver.Set {
	t.Helper()
	set := must.Get(driver.Open(t.Context(), must.Get(driver.Parse(cfg))(t)))(t)
	t.Cleanup(set.Close)
	return set
}
