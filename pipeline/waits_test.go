package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// failing sets a fail point of commands on a member of the target.
func (w *world) failing(mode any, data bson.D) {
	w.t.Helper()
	cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}, {Key: "data", Value: data}}
	if _, err := w.target.on(w.t.Context(), 0, "admin", cmd); err != nil {
		w.t.Fatal(err)
	}
}

// A wait of more than 5 s is reported: in the state's reason, and in the log when it
// begins and when it ends.
func TestWaitsAreTold(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		mode   any
		data   bson.D
		write  bson.D
		reason string
	}{
		{
			"a commit",
			bson.D{{Key: "times", Value: int32(1)}},
			bson.D{{Key: "failCommands", Value: bson.A{"commitTransaction"}}, {Key: "blockConnection", Value: true}, {Key: "blockTimeMS", Value: int32(8000)}},
			bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}},
			"commitTransaction on admin",
		},
		{
			"a command that is refused", "alwaysOn",
			bson.D{{Key: "failCommands", Value: bson.A{"create"}}, {Key: "errorCode", Value: int32(24)}},
			bson.D{{Key: "create", Value: "d"}},
			"create on db.d: refused:",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, mongosim.Options{}, mongosim.Options{})
			must.Succeed(t, w.start("a", pipeline.Config{Writers: 2}, scope.Config{}))
			l := w.links["a"]
			must.Succeed(t, w.caughtUp(l))
			w.failing(tt.mode, tt.data)
			must.Succeed(t, w.source.write(t.Context(), "db", tt.write))
			if err := w.untilOf(l, "a reason", func() bool {
				s := l.p.Snapshot()
				told, _ := w.waitTold(tt.reason)
				return told && len(s.Waits) > 0 && strings.Contains(s.Reason, "waiting for the target since ") && strings.Contains(s.Reason, tt.reason)
			}); err != nil {
				t.Fatal(err, l.p.Snapshot().Reason)
			}
			w.failing("off", bson.D{})
			must.Succeed(t, w.caughtUp(l))
			if err := w.until("the end of the wait", func() bool { _, over := w.waitTold(tt.reason); return over }); err != nil {
				t.Error(err)
			}
			if s := l.p.Snapshot(); s.Reason != "" || len(s.Waits) > 0 {
				t.Errorf("still %q, %v", s.Reason, s.Waits)
			}
		})
	}
}

// waitTold reports whether a wait was announced, and then its end.
func (w *world) waitTold(what string) (began, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		switch about := strings.Contains(event.Attr(e.event, "reason").String(), what); e.event.Message() {
		case "waiting":
			began = began || about
		case "waiting no more":
			over = over || began && about && event.Attr(e.event, "for").Duration() >= 5*time.Second
		}
	}
	return began, over
}

// A source without a reachable member, and a target without a primary: the link reports
// them before it has its lease.
func TestWaitsAtTheStart(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"source": "no member that can be read from has answered", "target": "no primary of it is known"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, mongosim.Options{}, mongosim.Options{Members: 3})
			connect := func(set *mongosim.Set) *driver.Set {
				return open(t, driver.Config{URI: set.URI(), SelectionTimeout: 30 * time.Second})
			}
			source, target := connect(w.source.Set), connect(w.target.Set)
			if name == "source" {
				w.source.Member(0).Freeze()
			} else {
				for i := range 2 {
					must.Succeed(t, w.target.Member(i).Kill())
				}
			}
			w.connectSource, w.connectTarget = func() *driver.Set { return source }, func() *driver.Set { return target }
			must.Succeed(t, w.start("a", pipeline.Config{Writers: 2}, scope.Config{}))
			l := w.links["a"]
			if err := w.untilOf(l, "a reason", func() bool {
				s := l.p.Snapshot()
				return s.State == monitor.Starting && strings.Contains(s.Reason, "waiting for the "+name+" since ") && strings.Contains(s.Reason, want)
			}); err != nil {
				t.Fatal(err, l.p.Snapshot().Reason)
			}
		})
	}
}
