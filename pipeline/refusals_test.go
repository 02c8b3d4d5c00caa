package pipeline_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// TestRefusalsThatPass: no transient refusal ends a link, whether of a command or of an
// operation that is alone in its flush.
func TestRefusalsThatPass(t *testing.T) {
	opts := mongosim.Options{Members: 1, Dialect: "6.0", Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, CheckpointInterval: 50 * time.Millisecond}, scope.Config{}))
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "a link", func() bool { return l.p.Snapshot().State == monitor.Steady }))
	src := func(cmd bson.D) {
		t.Helper()
		must.Succeed(t, w.source.write(t.Context(), "db", cmd))
	}
	src(bson.D{{Key: "create", Value: "first"}})
	for i, code := range []int{365, 290, 388, 146, 9001, 217, 256, 261, 90, 276, 279, 11, 79, 24, 112, 246, 134, 211, 371} {
		for _, command := range []string{"create", "createIndexes", "insert", "commitTransaction"} {
			if _, err := w.target.on(t.Context(), 0, "admin", bson.D{
				{Key: "configureFailPoint", Value: "failCommand"},
				{Key: "mode", Value: bson.D{{Key: "times", Value: 1}}},
				{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{command}}, {Key: "errorCode", Value: code}}},
			}); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("%s%d", command, i)
			switch command {
			case "create":
				src(bson.D{{Key: "create", Value: name}})
			case "createIndexes":
				src(bson.D{{Key: command, Value: "first"}, {Key: "indexes", Value: bson.A{
					bson.D{{Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}},
				}}})
			default:
				src(bson.D{{Key: "insert", Value: "first"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: name}}}}})
			}
			if err := w.caughtUp(l); err != nil {
				t.Fatalf("%s refused with %d: %v", command, code, err)
			}
		}
	}
	if report, err := w.equal(l); err != nil || report != "equal" {
		t.Error(report, err)
	}
}

// leastTickets is how many refusals TestTickets has to have seen.
const leastTickets = 10

// TestTickets: on a target that has fewer tickets than writers no attempt ends. One in
// four statements of transactions is refused, far more than on a real server that has 5
// of them and 48 other writers.
func TestTickets(t *testing.T) {
	w := newWorld(t, mongosim.Options{Members: 1, Moods: mongosim.NoMoods("the target is what is looked at")},
		mongosim.Options{Members: 1, Moods: mongosim.Moods{OneIn: map[string]int{"ticket-timeout": 4, "write-conflict": 20, "stale-catalog": 20}}})
	must.Succeed(t, w.start("a", pipeline.Config{Writers: 4, CheckpointInterval: 20 * time.Millisecond}, scope.Config{}))
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "a link", func() bool { return l.p.Snapshot().State == monitor.Steady }))
	var others sync.WaitGroup
	w.foreign.Store(true)
	for i := range 48 {
		others.Go(func() {
			for n := range 20 {
				_, _ = w.target.on(t.Context(), 0, "other", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{
					bson.D{{Key: "_id", Value: i*1000 + n}},
				}}})
			}
		})
	}
	// How many are refused depends on the size of flushes.
	for i := 0; i < 3000 && (i < 100 || w.target.Moods()["ticket-timeout"] < leastTickets); i++ {
		cmds := []bson.D{{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}}}
		if i%20 == 0 {
			cmds = append(cmds, bson.D{{Key: "create", Value: fmt.Sprint("d", i)}})
		}
		for _, cmd := range cmds {
			must.Succeed(t, w.source.write(t.Context(), "db", cmd))
		}
	}
	err := w.caughtUp(l)
	others.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if n := w.target.Moods()["ticket-timeout"]; n < leastTickets {
		t.Errorf("only %d tickets were refused", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	began := 0
	for _, e := range w.events {
		switch e := e.event.(type) {
		case checkpoint.Acquired:
			began++
		case pipeline.AttemptEnded:
			t.Errorf("an attempt ended: %v", e.Err)
		}
	}
	if began != 1 {
		t.Errorf("%d terms, want 1", began)
	}
}

// TestLastingRefusal: a refusal that lasts is shown in the state, and the link
// continues once it has ended.
func TestLastingRefusal(t *testing.T) {
	opts := mongosim.Options{Members: 1, Dialect: "6.0", Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, CheckpointInterval: 50 * time.Millisecond}, scope.Config{}))
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "a link", func() bool { return l.p.Snapshot().State == monitor.Steady }))
	fail := func(mode string) {
		t.Helper()
		if _, err := w.target.on(t.Context(), 0, "admin", bson.D{
			{Key: "configureFailPoint", Value: "failCommand"},
			{Key: "mode", Value: mode},
			{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"create"}}, {Key: "errorCode", Value: 365}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	fail("alwaysOn")
	must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
	if err := w.untilOf(l, "a reason", func() bool {
		return strings.Contains(l.p.Snapshot().Reason, "TemporarilyUnavailable")
	}); err != nil {
		t.Fatal(err, l.p.Snapshot().Reason)
	}
	fail("off")
	must.Succeed(t, w.caughtUp(l))
}
