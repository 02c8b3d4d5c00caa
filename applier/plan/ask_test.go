package plan_test

import (
	"testing"

	"github.com/oplogrep/replicator/applier/plan"
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
