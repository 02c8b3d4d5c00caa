package mongosim_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestFailCommand lets commands fail for the official driver: as often as asked,
// with the code and the labels asked for.
func TestFailCommand(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // with a deadline the driver goes on trying
	defer cancel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1})
	var started atomic.Int32
	monitor := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "insert" {
			started.Add(1)
		}
	}}
	coll := connect(t, set.URI(), options.Client().SetMonitor(monitor)).Database("app").Collection("c")
	for _, c := range []struct {
		name, spec string
		attempts   int32
		code       int
		labels     []string
	}{
		{
			"a retryable error once", `{"mode": {"times": 1}, "data": {"failCommands": ["insert"], "errorCode": 262, "errorLabels": ["RetryableWriteError"]}}`,
			2, 0, nil,
		},
		{
			"a retryable error twice", `{"mode": {"times": 2}, "data": {"failCommands": ["insert"], "errorCode": 262, "errorLabels": ["RetryableWriteError"]}}`,
			3, 0, nil,
		},
		{
			"the server's own label", `{"mode": {"times": 1}, "data": {"failCommands": ["insert"], "errorCode": 189}}`,
			2, 0, nil,
		},
		{"a label of one's own", `{"mode": {"times": 1}, "data": {"failCommands": ["insert"], "errorCode": 8, "errorLabels": ["Mine"]}}`, 1, 8, []string{"Mine"}},
		{"no labels", `{"mode": {"times": 1}, "data": {"failCommands": ["insert"], "errorCode": 262, "errorLabels": []}}`, 1, 262, nil},
		{"a connection that is closed", `{"mode": {"times": 1}, "data": {"failCommands": ["insert"], "closeConnection": true}}`, 2, 0, nil},
		{"the second insert", `{"mode": {"skip": 1}, "data": {"failCommands": ["insert"], "errorCode": 8}}`, 1, 0, nil},
		{"off", `{"mode": "off"}`, 1, 0, nil},
	} {
		must.Succeed(t, set.Do(ctx, must.Get(mongosim.ParseAction("failcommand primary "+c.spec))(t)))
		started.Store(0)
		_, err := coll.InsertOne(ctx, bson.D{})
		if n := started.Load(); n != c.attempts {
			t.Errorf("%s: %d attempts, want %d", c.name, n, c.attempts)
		}
		if c.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		e, ok := errors.AsType[mongo.ServerError](err)
		if !ok || !e.HasErrorCode(c.code) {
			t.Errorf("%s: %v, want code %d", c.name, err, c.code)
			continue
		}
		for _, label := range []string{"RetryableWriteError", "Mine"} {
			if e.HasErrorLabel(label) != slices.Contains(c.labels, label) {
				t.Errorf("%s: label %s is there: %t", c.name, label, e.HasErrorLabel(label))
			}
		}
	}
}
