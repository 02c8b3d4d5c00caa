package initialsync_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// TestStopWithArbiter: an arbiter, which has no entries, does not count for the end of a copy that was read from several
// members.
func TestStopWithArbiter(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{
		MemberOptions: []mongosim.MemberOptions{{}, {Arbiter: true}}, Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("each answer counts"),
	})
	conn := client.Open(t, driver.Config{URI: set.URI()})
	w := must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: conn.Hosts()}, conn))(t)
	ctx, end := context.WithCancelCause(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- w.Run(ctx) }()
	t.Cleanup(func() {
		end(nil)
		<-watched //nolint:errcheck // it was told to end
	})
	must.Succeed(t, w.Ready(ctx))
	primary := set.Primary()
	newest := primary.Oplog(bson.Timestamp{})
	ts, i := newest[len(newest)-1].Lookup("ts").Timestamp()
	members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: conn})
	c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
	if stop, err := members.Stop(ctx, &c, oplog.OpTime{}); err != nil || oplog.CompareTimestamps(stop.TS, bson.Timestamp{T: ts, I: i}) < 0 {
		t.Errorf("%s, %v", stop, err)
	}
}
