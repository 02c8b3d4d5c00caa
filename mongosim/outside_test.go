package mongosim

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/oplog"
)

// mirrorID is the _id of the member that a tool plays.
const mirrorID = 90

// withMirror adds a member at a host to the configuration, as measured with a real
// set: without a vote, hidden, and with a tag that the mode "mirror" asks for.
func withMirror(ctx context.Context, t *testing.T, s *Set, host string) {
	t.Helper()
	c := dial(t, s.Primary())
	var config bson.M
	succeed(t, c.run(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}).Lookup("config").Unmarshal(&config))
	config["version"] = config["version"].(int32) + 1
	config["members"] = append(config["members"].(bson.A), bson.D{
		{Key: "_id", Value: mirrorID},
		{Key: "host", Value: host},
		{Key: "votes", Value: 0},
		{Key: "priority", Value: 0},
		{Key: "hidden", Value: true},
		{Key: "buildIndexes", Value: false},
		{Key: "tags", Value: bson.D{{Key: "mirror", Value: "m1"}}},
	})
	settings, ok := config["settings"].(bson.D)
	if !ok {
		t.Fatalf("the settings are a %T", config["settings"])
	}
	modes := bson.D{{Key: "mirror", Value: bson.D{{Key: "mirror", Value: 1}}}}
	for i := range settings {
		if settings[i].Key == "getLastErrorModes" {
			settings[i].Value = modes
		}
	}
	c.run(ctx, "admin", bson.D{{Key: "replSetReconfig", Value: config}})
}

func mirrored(timeout int32) bson.D {
	return bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: timeout}}
}

// TestPositionReports: nothing listens at the member's host, and what a plain
// client reports for it counts.
func TestPositionReports(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 1})
	withMirror(ctx, t, s, "127.0.0.1:1")
	p := s.Primary()
	c := dial(t, p)
	wantCode(t, "while nobody reports", c.insert(ctx, 0, mirrored(100)), servererr.WriteConcernTimeout)

	stop := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		r := dial(t, p)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			newest := r.find(ctx, "local", "oplog.rs", bson.E{Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}}, bson.E{Key: "limit", Value: 1})[0]
			at := bson.D{{Key: "ts", Value: newest.Lookup("ts")}, {Key: "t", Value: newest.Lookup("t")}}
			r.run(ctx, "admin", bson.D{{Key: "replSetUpdatePosition", Value: 1}, {Key: "optimes", Value: bson.A{bson.D{
				{Key: "durableOpTime", Value: at},
				{Key: "durableWallTime", Value: newest.Lookup("wall")},
				{Key: "appliedOpTime", Value: at},
				{Key: "appliedWallTime", Value: newest.Lookup("wall")},
				{Key: "memberId", Value: int64(mirrorID)},
				{Key: "cfgver", Value: int64(1)},
			}}}})
		}
	})
	for i := 1; i <= 20; i++ {
		succeed(t, c.insert(ctx, i, mirrored(10000)))
	}
	close(stop)
	reporter.Wait()
	shown := statusOf(ctx, t, c, mirrorID)
	if text := shown.Lookup("stateStr").StringValue(); text != "(not reachable/healthy)" {
		t.Errorf("the member that does not answer is %q", text)
	}
	for _, m := range s.Members() {
		if v := view(t, m); !v.State.Readable() {
			t.Errorf("member %d is %s", m.ID(), v.State)
		}
	}
	_, err := c.call(ctx, "admin", bson.D{{Key: "replSetUpdatePosition", Value: 1}, {Key: "optimes", Value: bson.A{bson.D{
		{Key: "durableOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: 1}}, {Key: "t", Value: int64(1)}}},
		{Key: "durableWallTime", Value: time.Now()},
		{Key: "appliedOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: 1}}, {Key: "t", Value: int64(1)}}},
		{Key: "appliedWallTime", Value: time.Now()},
		{Key: "memberId", Value: int64(91)},
		{Key: "cfgver", Value: int64(1)},
	}}}})
	wantCode(t, "a report for a member that is not there", err, servererr.NodeNotFound)
}

func statusOf(ctx context.Context, t *testing.T, c *client, id int32) bson.Raw {
	t.Helper()
	var members []bson.Raw
	succeed(t, c.run(ctx, "admin", bson.D{{Key: "replSetGetStatus", Value: 1}}).Lookup("members").Unmarshal(&members))
	for _, m := range members {
		if n, _ := m.Lookup("_id").AsInt64OK(); n == int64(id) {
			return m
		}
	}
	t.Fatalf("no member %d in the status", id)
	return nil
}

// tool is the least that a member has to answer.
type tool struct {
	set *Set

	mu       sync.Mutex
	received []string
}

func (x *tool) Handle(_ context.Context, m *wire.Message) wire.Response {
	name := m.Body.Index(0).Key()
	x.mu.Lock()
	op := "OP_MSG "
	if m.Legacy {
		op = "OP_QUERY "
	}
	x.received = append(x.received, op+name)
	x.mu.Unlock()
	reply := bson.D{{Key: "ok", Value: 1.0}}
	if name == "replSetHeartbeat" {
		p := x.set.Primary()
		if p == nil {
			return wire.Response{Body: marshal(bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: "wait"}})}
		}
		v, _ := p.view()
		at := bson.D{{Key: "ts", Value: v.Committed.TS}, {Key: "t", Value: v.Committed.Term}}
		reply = append(
			reply,
			bson.E{Key: "state", Value: int32(oplog.MemberSecondary)}, bson.E{Key: "v", Value: int32(v.ConfigVersion)},
			bson.E{Key: "configTerm", Value: int32(v.ConfigTerm)}, bson.E{Key: "set", Value: v.SetName}, bson.E{Key: "term", Value: v.Term},
			bson.E{Key: "durableOpTime", Value: at}, bson.E{Key: "durableWallTime", Value: v.CommittedWall},
			bson.E{Key: "opTime", Value: at}, bson.E{Key: "wallTime", Value: v.CommittedWall},
		)
	}
	return wire.Response{Body: marshal(reply)}
}

// TestHeartbeatsOutside: a tool that answers heartbeats is a secondary to the set,
// and acknowledges writes by them alone.
func TestHeartbeatsOutside(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 2})
	l := must[net.Listener](t)((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	x := &tool{set: s}
	serving, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { _ = wire.Serve(serving, conn, x) })
		}
	})
	defer running.Wait()
	defer stop(nil)
	defer l.Close() //nolint:errcheck // the test is over

	withMirror(ctx, t, s, l.Addr().String())
	c := dial(t, s.Primary())
	for i := range 3 {
		succeed(t, c.insert(ctx, i, mirrored(10000)))
	}
	shown := statusOf(ctx, t, c, mirrorID)
	if shown.Lookup("stateStr").StringValue() != "SECONDARY" || shown.Lookup("health").Double() != 1 {
		t.Errorf("the tool is shown as %s", shown)
	}
	// All members ask it, each first as real ones do.
	x.mu.Lock()
	received := slices.Clone(x.received)
	x.mu.Unlock()
	if received[0] != "OP_QUERY isMaster" || !slices.Contains(received, "OP_MSG replSetHeartbeat") {
		t.Errorf("the tool received %s", received)
	}
	for _, op := range received {
		if !slices.Contains(recordedRequests(t), op) {
			t.Errorf("the tool received %s, which a real set did not send", op)
		}
	}
	// Gone, it is an ordinary member that is down.
	succeed(t, l.Close())
	stop(nil)
	eventually(ctx, t, "the tool is missed", func() bool { return statusOf(ctx, t, c, mirrorID).Lookup("health").Double() == 0 })
	succeed(t, c.insert(ctx, "after", majority))
}

// recordedRequests are what a real set sent to a member like this.
func recordedRequests(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "received-by-a-new-hidden-member.json"))
	succeed(t, err)
	var list []struct {
		Op       string          `json:"op"`
		Document json.RawMessage `json:"document"`
	}
	succeed(t, json.Unmarshal(text, &list))
	var requests []string
	for _, e := range list {
		var doc bson.D
		succeed(t, bson.UnmarshalExtJSON(e.Document, false, &doc))
		requests = append(requests, e.Op+" "+doc[0].Key)
	}
	return requests
}
