package pipeline

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
)

// TestStandsOnDisk: a part that is told to end while it reads its spool stands where it is, and can be merged there, once
// its collection is consistent. A link has not applied what it has read.
func TestStandsOnDisk(t *testing.T) {
	t.Parallel()
	m := monitor.New(monitor.Config{})
	read := reading.New(reading.Config{Link: "l", Copy: initialsync.Options{SpoolDir: t.TempDir()}, Memory: func() int64 { return 0 }, Monitor: m})
	log := read.Log()
	must.Succeed(t, log.Prepare(nil))
	defer func() { must.Succeed(t, log.Close()) }()
	raw := must.Get(bson.Marshal(bson.D{
		{Key: "op", Value: "n"},
		{Key: "ns", Value: ""},
		{Key: "o", Value: bson.D{{Key: "msg", Value: "x"}}},
		{Key: "ts", Value: bson.Timestamp{T: 7, I: 1}},
		{Key: "t", Value: int64(1)},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(7000)},
	}))(t)
	replies := make(chan oplog.Reply, 1)
	replies <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(raw))(t)}, Bytes: int64(len(raw))}
	close(replies)
	must.Succeed(t, log.Spool().Store(t.Context(), replies))
	for _, tt := range []struct {
		of      *part
		copying bool
		ends    bool
	}{{nil, false, false}, {&part{}, true, false}, {&part{}, false, true}} {
		p := &Pipeline{cfg: Config{part: tt.of}, monitor: m, oplog: read}
		p.monitor.SetGaps(checkpoint.Gaps{Copying: tt.copying})
		if err := p.notDrained(time.Now()); (err == nil) != tt.ends {
			t.Errorf("a part: %t, of which documents are missing: %t: %v", tt.of != nil, tt.copying, err)
		}
	}
}
