package plan_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
)

// TestAskInternalApply: whether the target applies deltas itself is found by trying, not by its version.
func TestAskInternalApply(t *testing.T) {
	for dialect, want := range map[string]bool{"4.4": false, "5.0": false, "6.0": true, "8.0": true} {
		set := mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: dialect})
		target := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
		got, err := plan.AskInternalApply(t.Context(), target, "replicator")
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", dialect, got, err, want)
		}
	}
}

// TestAsk: a target before 5.0 has no operators for fields by their names.
func TestAsk(t *testing.T) {
	for dialect, want := range map[string]plan.Options{
		"4.4": {Coalesce: true, NoFieldOperators: true}, "5.0": {Coalesce: true}, "6.0": {Coalesce: true, InternalApply: true},
	} {
		set := mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: dialect})
		target := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
		got, err := plan.Ask(t.Context(), target, "replicator")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", dialect, got, err, want)
		}
	}
}

// refusing refuses the statement of each write with a code.
type refusing int

// Call implements mongo.Caller.
func (code refusing) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 0}, {Key: "writeErrors", Value: bson.A{
		bson.D{{Key: "index", Value: 0}, {Key: "code", Value: int32(code)}, {Key: "errmsg", Value: "no"}},
	}}})
}

// TestAskElection: a primary that steps down while it executes a write may report that as an error of the statement.
// That says nothing about what the target can do.
func TestAskElection(t *testing.T) {
	t.Parallel()
	for code, fails := range map[refusing]bool{10107: true, 189: true, 40324: false} {
		got, err := plan.Ask(t.Context(), code, "replicator")
		if (err != nil) != fails {
			t.Errorf("%d: %+v, %v", code, got, err)
		}
	}
}
