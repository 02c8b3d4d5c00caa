package ddl_test

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestDefinitions drops a database whose views are all dropped.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	unauthorized := func(command string) func(mongo.Command) error {
		return func(cmd mongo.Command) error {
			elems, err := cmd.Body.Elements()
			if name, _ := elems[0].Value().StringValueOK(); err == nil && elems[0].Key() == command && name == "system.views" {
				return &servererr.Error{Code: servererr.Unauthorized}
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name   string
		shared bool
		before func(mongo.Command) error
		left   bool
		told   bool
	}{
		{name: "removed"},
		// The other executor may be about to create a view, which is not detectable.
		{name: "left to others", shared: true, left: true},
		{name: "not let go", before: unauthorized("drop"), left: true, told: true},
		{name: "not shown", before: unauthorized("find"), left: true, told: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
			b.cfg.Shared = tt.shared
			b.restart(t)
			b.must(t, "db", `{"create": "a"}`)
			b.must(t, "db", `{"create": "v", "viewOn": "a", "pipeline": []}`)
			b.must(t, "db", `{"drop": "v"}`)
			b.before = tt.before
			for _, line := range []string{`c db.$cmd {"drop": "a"}`, `c db.$cmd {"dropDatabase": 1}`} {
				must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
			}
			b.before = nil
			docs, err := catalog.List(t.Context(), b, "db", "system.views")
			if err != nil || len(docs) == 1 != tt.left {
				t.Errorf("there is %v, %v", docs, err)
			}
			told := slices.ContainsFunc(b.events, func(e event.Event) bool { return e.Message() == "collection of view definitions left" })
			if told != tt.told {
				t.Errorf("told: %t", told)
			}
		})
	}
}
