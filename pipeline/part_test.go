package pipeline

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/resync"
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

// TestCreateOfPart: a part whose collection its link does not leave out any more, or whose link is about to begin another term, is
// interrupted: neither its request nor the link fails. Once another process has the lease, it is fenced.
func TestCreateOfPart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	target := client.Open(t, driver.Config{URI: mongosim.StartTest(t, mongosim.Options{TTLInterval: -1}).URI(), AppName: mongosim.Stage})
	store := func(link, of string) *checkpoint.Store {
		return must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link, Of: of}))(t)
	}
	begin := oplog.NewOpTime(100, 1, 1)
	first := checkpoint.State{Writers: 1, Applied: begin, FetchFrom: begin, Source: checkpoint.Source{SetName: "rs"}}
	whole := store("l", "")
	must.Succeed(t, whole.Create(ctx, first))
	of := &part{of: resync.Part{NS: "d.c", Link: "resync-1", Asked: time.UnixMilli(1_700_000_000_000)}, leads: &atomic.Pointer[checkpoint.Link]{}}
	p := &Pipeline{cfg: Config{part: of}, store: store("resync-1", "l")}
	lead := func() *checkpoint.Link {
		link := must.Get(whole.Acquire(ctx, 0))(t)
		of.leads.Store(link)
		return link
	}
	interrupted := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, failure.ErrStopped) || errors.Is(err, lease.ErrSpent) {
			t.Errorf("%s: %v", what, err)
		}
	}
	link := lead()
	interrupted("it leaves out nothing", p.create(ctx, first))
	must.Succeed(t, link.ChangeLeftOut(ctx, func(mongo.Caller, []checkpoint.LeftOut) ([]checkpoint.LeftOut, error) {
		return []checkpoint.LeftOut{{NS: "d.c", Since: begin, Asked: of.of.Asked}}, nil
	}))
	if _, err := link.SetWriters(ctx, 2); !errors.Is(err, lease.ErrSpent) {
		t.Fatal(err)
	}
	interrupted("its lease is spent", p.create(ctx, first))
	lead()
	must.Get(store("l", "").Acquire(ctx, 0))(t)
	if err := p.create(ctx, first); !errors.Is(err, lease.ErrFenced) {
		t.Errorf("another process has the lease: %v", err)
	}
	lead()
	must.Succeed(t, p.create(ctx, first))
}
