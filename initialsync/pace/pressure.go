package pace

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// A cache that is so dirty, or so full, makes operations clean it up before
	// they go on: the server's own triggers, as parts of its size.
	dirtyTrigger, fullTrigger = 0.20, 0.95
	// longQueue is how many operations wait, at least, where that is a sign. Fewer
	// may be ours.
	longQueue = 32
)

// kind is a kind of sign.
type kind string

const (
	flowControl kind = "flow control"
	dirtyCache  kind = "dirty cache"
	fullCache   kind = "full cache"
	noTickets   kind = "tickets"
	queue       kind = "queue"
	slowWork    kind = "latency"
)

// sign is something that shows pressure.
type sign struct {
	side clone.Side
	kind kind
	text string
}

// statusCommand asks for what is read of serverStatus, by leaving out what is
// large or costs time, as far as the server knows it.
var statusCommand = func() bson.Raw {
	b := bsoncore.NewDocumentBuilder().AppendInt32("serverStatus", 1)
	for _, section := range []string{
		"asserts", "batchedDeletes", "bucketCatalog", "catalogStats", "changeStreamPreImages", "connections", "defaultRWConcern",
		"electionMetrics", "extra_info", "hedgingMetrics", "indexBuilds", "indexBulkBuilder", "indexStats", "locks",
		"logicalSessionRecordCache", "mem", "metrics", "network", "opLatencies", "opReadConcernCounters",
		"opWriteConcernCounters", "opcounters", "opcountersRepl", "oplogTruncation", "planCache", "queryAnalyzers", "queryStats",
		"readConcernCounters", "readPreferenceCounters", "repl", "scramCache", "security", "sharding", "shardingStatistics",
		"storageEngine", "tcmalloc", "tenantMigrations", "trafficRecording", "transactions", "transportSecurity",
		"twoPhaseCommitCoordinator", "watchdog", "writeBacksQueued",
	} {
		b.AppendInt32(section, 0)
	}
	return bson.Raw(b.Build())
}()

// pressure returns the first sign of pressure in a reply to serverStatus. What a
// server does not tell is none.
func pressure(reply bson.Raw) (kind, string, bool) {
	if isTrue(reply, false, "flowControl", "isLagged") && isTrue(reply, true, "flowControl", "enabled") {
		return flowControl, "flow control holds its writes back, as its secondaries lag", true
	}
	size := number(reply, "wiredTiger", "cache", "maximum bytes configured")
	if size > 0 {
		dirty := number(reply, "wiredTiger", "cache", "tracked dirty bytes in the cache") / size
		if dirty > dirtyTrigger {
			return dirtyCache, fmt.Sprintf("%.0f %% of its cache is dirty", 100*dirty), true
		}
		used := number(reply, "wiredTiger", "cache", "bytes currently in the cache") / size
		if used > fullTrigger {
			return fullCache, fmt.Sprintf("%.0f %% of its cache is used", 100*used), true
		}
	}
	// 8.0 has moved them.
	for _, at := range [][]string{{"queues", "execution"}, {"wiredTiger", "concurrentTransactions"}} {
		for _, what := range []string{"write", "read"} {
			if exhausted(reply, append(at[:2:2], what)) {
				return noTickets, "it has no tickets left to " + what, true
			}
		}
	}
	if n := number(reply, "globalLock", "currentQueue", "total"); n >= longQueue {
		return queue, fmt.Sprintf("%.0f operations are queued", n), true
	}
	return "", "", false
}

// exhausted reports whether the tickets of one kind are all in use. Since 7.0 the
// server keeps their number as small as serves it, and says how many operations
// wait for one: none left is no sign while none waits.
func exhausted(reply bson.Raw, at []string) bool {
	available, ok := maybeNumber(reply, append(at[:3:3], "available")...)
	if !ok || available > 0 || number(reply, append(at[:3:3], "totalTickets")...) <= 0 {
		return false
	}
	waiting, ok := maybeNumber(reply, append(at[:3:3], "normalPriority", "queueLength")...)
	return !ok || waiting > 0
}

// number returns a number, 0 where there is none.
func number(doc bson.Raw, path ...string) float64 {
	n, _ := maybeNumber(doc, path...)
	return n
}

// maybeNumber returns a number of any type.
func maybeNumber(doc bson.Raw, path ...string) (float64, bool) {
	e, ok := find(doc, path...)
	if !ok {
		return 0, false
	}
	v := e.Raw()
	return v.AsFloat64OK()
}

// isTrue returns a boolean, or what it is where there is none.
func isTrue(doc bson.Raw, otherwise bool, path ...string) bool {
	e, ok := find(doc, path...)
	if !ok {
		return otherwise
	}
	b, ok := e.Bool()
	if !ok {
		return otherwise
	}
	return b
}

// find looks for what is inside of documents. What the driver has for it panics
// where one of those is damaged.
func find(doc bson.Raw, path ...string) (rawbson.Elem, bool) {
	for _, name := range path[:len(path)-1] {
		e, ok := rawbson.Lookup(doc, name)
		if !ok {
			return rawbson.Elem{}, false
		}
		if doc, ok = e.Document(); !ok {
			return rawbson.Elem{}, false
		}
	}
	return rawbson.Lookup(doc, path[len(path)-1])
}
