package fetcher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// leaving is a set of which one member shuts down while the others take longer to answer than that lasts.
type leaving struct {
	syncsource.Dialer
	host string
}

func (d leaving) Member(host string) mongo.Caller {
	member := d.Dialer.Member(host)
	return called(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		switch {
		case simcaller.Name(cmd) != "find":
			return member.Call(ctx, cmd)
		case host == d.host:
			return nil, servererr.New(servererr.ShutdownInProgress, "The server is in quiesce mode and will shut down").
				WithInfo(bson.Raw(bsoncore.NewDocumentBuilder().AppendInt64("remainingQuiesceTimeMillis", 1).Build()))
		}
		select {
		case <-time.After(syncsource.RetryInterval):
			return member.Call(ctx, cmd)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}

// called is a function that is a mongo.Caller.
type called func(ctx context.Context, cmd mongo.Command) (bson.Raw, error)

func (f called) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) { return f(ctx, cmd) }

// TestUntold: the oplogs of two members have rolled over, and the third one did not say how far its own reaches: that it
// might be asked again before the others had answered does not end anything.
func TestUntold(t *testing.T) {
	t.Parallel()
	// The one that is leaving is asked first.
	tags := []map[string]string{{"asked": "first"}, {"asked": "later"}}
	set := mongosim.StartTest(t, mongosim.Options{MemberOptions: []mongosim.MemberOptions{{Tags: tags[1]}, {Tags: tags[1]}, {Tags: tags[0]}}, Seed: 4})
	source, _, _ := watched(t, set, func(syncsource.View) bool { return true })
	dial := leaving{source, set.Members()[2].Host()}
	watcher := must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: source.Hosts()}, dial))(t)
	watch(t, watcher, func(v syncsource.View) bool {
		away := func(m syncsource.Member) bool { return !m.Up() || !m.State.Readable() }
		return v.Settled && !v.ConfigUnread && len(v.Members) == 3 && !slices.ContainsFunc(v.Members, away)
	})
	resolver := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{TagSets: tags}}, watcher, dial))(t)
	f := must.Get(New(Config{From: oplog.NewOpTime(1, 1, 1), Resolver: resolver, Watcher: watcher, MirrorMember: -1}))(t)
	_, err := resolver.Resolve(t.Context(), f.last)
	stale, ok := errors.AsType[*syncsource.TooStaleError](err)
	if !ok || !f.allSeen() {
		t.Fatalf("the test is about members of which none is known to be away: %v, %t", err, f.allSeen())
	}
	if len(stale.Untold) != 1 || stale.Untold[0] != dial.host {
		t.Errorf("not told by %v", stale.Untold)
	}
	if err := f.noSource(t.Context(), err); err != nil {
		t.Errorf("the end: %v", err)
	}
}
