package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Cluster is a replica set: *driver.Set. Call runs commands on its primary.
type Cluster interface {
	Caller
	// Member returns a caller of one member.
	Member(host string) Caller
	// Hosts returns the known members.
	Hosts() []string
	// Seeds returns the known members and the hosts of the connection string.
	Seeds() []string
	// Direct reports whether there is only one host, which is addressed by that name
	// whatever the set's configuration calls its members (directConnection=true).
	Direct() bool
}

// Route returns a Cluster whose Call is that of primary. It is a Pipeliner if primary is one.
func Route(c Cluster, primary Caller) Cluster {
	r := routed{c, primary}
	if p, ok := primary.(Pipeliner); ok {
		return routedPipeliner{r, p}
	}
	return r
}

// routed is a Cluster with another Caller for its primary.
type routed struct {
	Cluster
	primary Caller
}

type routedPipeliner struct {
	routed
	Pipeliner
}

// Call implements Caller.
func (r routed) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	return r.primary.Call(ctx, cmd)
}

// Call implements Caller.
func (r routedPipeliner) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	return r.routed.Call(ctx, cmd)
}
