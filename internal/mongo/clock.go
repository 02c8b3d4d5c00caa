package mongo

import (
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Clock is the newest time in the replies of a server, or of several servers of one cluster. The
// zero Clock has none. Its methods may be called concurrently.
type Clock struct {
	mu     sync.Mutex
	latest bson.Timestamp // guarded by mu
}

// Reply records the times in a reply. The reply shows nothing later than them: the
// cluster time is at least that of every write that the server knows of, but the
// operation time may be recorded shortly after the write becomes visible.
func (c *Clock) Reply(reply bson.Raw) {
	e, _ := rawbson.Lookup(reply, "operationTime")
	operation, _ := e.Timestamp()
	e, _ = rawbson.Lookup(reply, "$clusterTime")
	doc, _ := e.Document()
	e, _ = rawbson.Lookup(doc, "clusterTime")
	cluster, _ := e.Timestamp()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ts := range []bson.Timestamp{operation, cluster} {
		if ts.After(c.latest) {
			c.latest = ts
		}
	}
}

// Time returns a cluster time that is not before anything that the replies have shown until
// now, zero if none had a time.
func (c *Clock) Time() bson.Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}
