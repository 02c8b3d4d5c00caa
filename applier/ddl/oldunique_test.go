package ddl_test

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestConvertBefore6: a target that cannot make an index unique has one that is after the cutover, under both policies. One that is only
// prepared for that keeps no cutover from its end, which says that it accepts duplicates.
func TestConvertBefore6(t *testing.T) {
	t.Parallel()
	for name, unique := range map[string]ddl.UniqueIndexes{"relaxed": ddl.Relaxed, "serialized": ddl.Serialized} {
		for _, dialect := range []string{"4.4", "5.0", "6.0/5.0"} {
			t.Run(name+" "+dialect, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, dialect, unique, scope.Config{})
				for _, line := range []string{
					`{"create": "a"}`,
					`{"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1"}`,
					`{"createIndexes": "a", "v": 2, "key": {"y": 1}, "name": "y_1"}`,
					`{"collMod": "a", "index": {"name": "x_1", "prepareUnique": true}}`,
					`{"collMod": "a", "index": {"name": "y_1", "prepareUnique": true}}`,
					`{"collMod": "a", "index": {"name": "x_1", "unique": true}}`,
				} {
					must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+line), ddl.Once))
				}
				c := must.Get(ddl.NewConverter(t.Context(), b, open{b.server}, "replicator", "link"))(t)
				told := map[string]string{}
				must.Succeed(t, c.Convert(t.Context(), func(done ddl.Converted) { told[done.Index] = done.What }))
				if told["x_1"] != "dropped, and built unique" || !strings.HasPrefix(told["y_1"], "accepts duplicates, as the target cannot") {
					t.Errorf("told %q", told)
				}
				for _, spec := range must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t) {
					is, _ := spec.Lookup("unique").BooleanOK()
					if is != (spec.Lookup("name").StringValue() == "x_1") {
						t.Errorf("index %s", spec)
					}
				}
			})
		}
	}
}

// TestLoosenInterrupted: wherever a process ends while it builds a unique index again as one that is not, the next one goes on.
func TestLoosenInterrupted(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		b := newBench(t, "6.0", ddl.Serialized, scope.Config{})
		for _, line := range []string{`{"create": "a"}`, `{"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`} {
			must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, "c db.$cmd "+line), ddl.Once))
		}
		op, n := b.operation(t, `c db.$cmd {"collMod": "a", "index": {"name": "x_1", "hidden": true, "forceNonUnique": true}}`), 0
		b.before = func(mongo.Command) error {
			if n++; n >= at {
				return servererr.New(servererr.Unauthorized, "gone")
			}
			return nil
		}
		ended := b.exec.Apply(t.Context(), op, ddl.Once)
		b.before = nil
		b.restart(t)
		must.Succeed(t, b.exec.Apply(t.Context(), op, ddl.Maybe))
		for _, spec := range must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t) {
			if unique, _ := spec.Lookup("unique").BooleanOK(); unique {
				t.Errorf("at %d: %s", at, spec)
			}
		}
		if specs := must.Get(ddl.ReadDeferred(t.Context(), b, "replicator", "link"))(t); len(specs) > 0 {
			t.Errorf("at %d: deferred %v", at, specs)
		}
		if indexes := must.Get(catalog.Indexes(t.Context(), b, "db.a"))(t); len(indexes) != 2 {
			t.Errorf("at %d: indexes %s", at, indexes)
		}
		if ended == nil {
			if at < 6 {
				t.Errorf("%d commands", at-1)
			}
			return
		}
	}
}
