package pace

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// A cache this dirty, or this full, makes operations evict pages before they
	// continue: the server's own triggers, as fractions of its size.
	dirtyTrigger, fullTrigger = 0.20, 0.95
	// longQueue is how many waiting operations are a sign of pressure. Fewer may be our
	// own.
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

// statusCommand requests the fields of serverStatus that are used, by excluding large
// or expensive sections, as far as the server knows them.
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

// pressure returns the first sign of pressure in a reply to serverStatus. Fields that a
// server does not report are not a sign.
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
	// Moved in 8.0.
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
// server keeps their number as small as possible, and reports how many operations wait
// for one: no ticket left is not a sign while no operation waits.
func exhausted(reply bson.Raw, at []string) bool {
	available, ok := maybeNumber(reply, append(at[:3:3], "available")...)
	if !ok || available > 0 || number(reply, append(at[:3:3], "totalTickets")...) <= 0 {
		return false
	}
	waiting, ok := maybeNumber(reply, append(at[:3:3], "normalPriority", "queueLength")...)
	return !ok || waiting > 0
}

// number returns a number, 0 if there is none.
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

// isTrue returns a boolean, or otherwise if there is none.
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

// find looks up an element of nested documents. The driver's function for that panics
// on damaged documents.
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
