package initialsync

import (
	"context"
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// said is a member that answers everything with the same reply.
type said bson.Raw

func (s said) Call(context.Context, mongo.Command) (bson.Raw, error) { return bson.Raw(s), nil }

func (s said) Member(string) mongo.Caller { return s }

// TestStopAfterShown: a copy does not end before most of the members know the entries read as
// majority-committed; other replies do not count.
func TestStopAfterShown(t *testing.T) {
	t.Parallel()
	newest := said(bsongen.FromJSON(t, `{
		"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 10, "i": 1}}, "t": {"$numberLong": "1"}}], "id": 0, "ns": "local.oplog.rs"},
		"setName": "rs0", "hosts": ["a:1", "b:1", "c:1"], "secondary": true,
		"config": {"_id": "rs0", "version": 1, "members": [{"_id": 0, "host": "a:1"}, {"_id": 1, "host": "b:1"}, {"_id": 2, "host": "c:1"}]},
		"ok": 1}`))
	w := must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: []string{"a:1", "b:1", "c:1"}}, newest))(t)
	ctx, end := context.WithCancelCause(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() {
		end(nil)
		watching.Wait()
	})
	for known := false; !known; {
		changed := w.Changed()
		if known = !w.View().ConfigUnread; !known {
			<-changed
		}
	}
	m := NewMembers(MembersConfig{Watcher: w, Dialer: newest})
	at := func(seconds string) mongo.Caller {
		return m.observe(said(bsongen.FromJSON(t, `{"ok": 1, "operationTime": {"$timestamp": {"t": `+seconds+`, "i": 1}}}`)), "a:1")
	}
	ask := func(member mongo.Caller, cmd string) {
		must.Get(member.Call(t.Context(), mongo.Command{DB: "d", Body: bsongen.FromJSON(t, cmd)}))(t)
	}
	stops := func() (oplog.OpTime, error) {
		return m.Stop(t.Context(), &checkpoint.Copy{Host: "a:1", Moves: 1, Begin: oplog.NewOpTime(9, 1, 1)}, oplog.OpTime{})
	}
	ask(at("10"), `{"find": "c", "readConcern": {"level": "majority"}}`)
	ask(at("99"), `{"listCollections": 1}`)
	if stop, err := stops(); err != nil || stop != oplog.NewOpTime(10, 1, 1) {
		t.Errorf("%s, %v", stop, err)
	}
	for _, cmd := range []string{`{"getMore": {"$numberLong": "7"}, "collection": "c"}`, `{"find": "c", "readConcern": {"level": "majority"}}`} {
		m.shown = shown{}
		ask(at("11"), cmd)
		if _, err := stops(); !errors.Is(err, ErrNoMember) {
			t.Errorf("what %s has shown is after the end: %v", cmd, err)
		}
	}
}
