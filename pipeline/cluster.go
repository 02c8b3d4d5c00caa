package pipeline

import (
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// Connected returns a Cluster for an open connection.
func Connected(set *driver.Set) Cluster { return connected{set} }

type connected struct{ *driver.Set }

// Member implements Cluster.
func (c connected) Member(host string) (mongo.Caller, error) { return c.Set.Member(host), nil }
