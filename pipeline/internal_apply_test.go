package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/mongosim"
)

// Whether the target applies deltas itself is found by trying, not by its version.
func TestInternalApply(t *testing.T) {
	for dialect, want := range map[string]bool{"4.4": false, "5.0": false, "6.0": true, "8.0": true} {
		set := mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: dialect})
		o, err := driver.Parse(driver.Config{URI: set.URI(), AppName: mongosim.Stage})
		if err != nil {
			t.Fatal(err)
		}
		target, err := driver.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(target.Close)
		p := &Pipeline{cfg: Config{MetaDB: "replicator"}, target: Connected(target)}
		got, err := p.internalApply(t.Context())
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", dialect, got, err, want)
		}
	}
}
