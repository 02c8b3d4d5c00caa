package pace

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

const calmCache = `"cache": {"maximum bytes configured": 1000, "bytes currently in the cache": 950, "tracked dirty bytes in the cache": 200}`

func TestPressure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reply string
		kind        kind
		text        string
	}{
		{"recorded, idle", recorded(t), "", ""},
		{"recorded, but lagged", strings.Replace(recorded(t), `"isLagged": false`, `"isLagged": true`, 1), flowControl, "flow control holds its writes back, as its secondaries lag"},
		{
			"recorded, but queued",
			strings.Replace(recorded(t), `"currentQueue": {`+"\n   "+`"total": {`+"\n    "+`"$numberInt": "0"`, `"currentQueue": {"total": {"$numberInt": "32"`, 1),
			queue, "32 operations are queued",
		},
		{"lagged, but off", `{"flowControl": {"enabled": false, "isLagged": true}}`, "", ""},
		{"nothing", `{}`, "", ""},
		{"cache at its triggers", `{"wiredTiger": {` + calmCache + `}}`, "", ""},
		{
			"dirty cache", `{"wiredTiger": {"cache": {"maximum bytes configured": {"$numberDouble": "1000"}, "tracked dirty bytes in the cache": {"$numberLong": "216"}}}}`,
			dirtyCache, "22 % of its cache is dirty",
		},
		{
			"full cache", `{"wiredTiger": {"cache": {"maximum bytes configured": 1000, "bytes currently in the cache": 960, "tracked dirty bytes in the cache": 1}}}`,
			fullCache, "96 % of its cache is used",
		},
		{"cache without a size", `{"wiredTiger": {"cache": {"maximum bytes configured": 0, "bytes currently in the cache": 960}}}`, "", ""},
		{
			"tickets, 6.0", `{"wiredTiger": {` + calmCache + `, "concurrentTransactions": {"write": {"out": 128, "available": 0, "totalTickets": 128}, "read": {"out": 0, "available": 128, "totalTickets": 128}}}}`,
			noTickets, "it has no tickets left to write",
		},
		{
			"tickets left, 6.0", `{"wiredTiger": {"concurrentTransactions": {"write": {"out": 127, "available": 1, "totalTickets": 128}, "read": {"out": 0, "available": 128, "totalTickets": 128}}}}`,
			"", "",
		},
		{"tickets that are not told", `{"wiredTiger": {"concurrentTransactions": {"write": {"totalTickets": 128}, "read": {"available": 0}}}}`, "", ""},
		{
			"tickets, 8.0", `{"queues": {"execution": {"write": {"available": 3, "totalTickets": 8, "normalPriority": {"queueLength": 0}}, "read": {"available": 0, "totalTickets": 8, "normalPriority": {"queueLength": {"$numberLong": "2"}}}}}}`,
			noTickets, "it has no tickets left to read",
		},
		{
			"as many tickets as are needed, 8.0", `{"queues": {"execution": {"write": {"available": 0, "totalTickets": 8, "normalPriority": {"queueLength": 0}}}}}`,
			"", "",
		},
		{"other types", `{"flowControl": {"isLagged": 1}, "wiredTiger": "x", "queues": {"execution": [1]}, "globalLock": {"currentQueue": {"total": "99"}}}`, "", ""},
	} {
		kind, text, ok := pressure(bsongen.FromJSON(t, c.reply))
		if kind != c.kind || text != c.text || ok != (c.kind != "") {
			t.Errorf("%s: %q %q %v", c.name, kind, text, ok)
		}
	}
}

// FuzzPressure: no reply, whatever its bytes, makes the reader panic.
func FuzzPressure(f *testing.F) {
	f.Add([]byte(bsongen.FromJSON(f, recorded(f))))
	f.Add([]byte(bsongen.FromJSON(f, `{"wiredTiger": {`+calmCache+`, "concurrentTransactions": {"write": {"available": 0, "totalTickets": 8, "normalPriority": {"queueLength": 1}}}}}`)))
	f.Add([]byte(bsongen.FromJSON(f, `{"queues": {"execution": {"read": {"available": 0, "totalTickets": 8}}}}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if kind, text, ok := pressure(bson.Raw(data)); ok != (kind != "") || ok != (text != "") {
			t.Errorf("%q %q %v", kind, text, ok)
		}
	})
}
