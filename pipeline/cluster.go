package pipeline

import (
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mdb"
)

// Connected makes a Cluster of an open connection.
func Connected(set *mdb.Set) Cluster { return connected{set} }

type connected struct{ *mdb.Set }

// Member implements Cluster.
func (c connected) Member(host string) (call.Caller, error) { return c.Set.Member(host), nil }
