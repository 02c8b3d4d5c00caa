package ddl_test

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/scope"
)

// TestCatalogFollows: after every command the catalog equals the target, including which
// collections require the log's order. Only the executor refreshes it.
func TestCatalogFollows(t *testing.T) {
	t.Parallel()
	for name, unique := range map[string]ddl.UniqueIndexes{"relaxed": ddl.Relaxed, "serialized": ddl.Serialized} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "7.0", unique, scope.Config{})
			known := func(c *catalog.Catalog) []catalog.Collection {
				t.Helper()
				var list []catalog.Collection
				for _, db := range []string{"db", "gone"} {
					colls, err := c.Database(t.Context(), db)
					if err != nil {
						t.Fatal(err)
					}
					for _, coll := range colls {
						if coll.NS.IsSystemViews() {
							continue // its entries are not document operations here
						}
						list = append(list, *coll)
					}
				}
				slices.SortFunc(list, func(a, b catalog.Collection) int { return cmp.Compare(a.NS, b.NS) })
				return list
			}
			known(b.cfg.Catalog)
			ordered := false
			for _, op := range b.history(t) {
				if err := b.exec.Apply(t.Context(), op, ddl.Once); err != nil {
					t.Fatalf("%s: %v", op.O, err)
				}
				fresh, err := catalog.Load(t.Context(), b.server, nil)
				if err != nil {
					t.Fatal(err)
				}
				want := known(fresh)
				if diff := gocmp.Diff(want, known(b.cfg.Catalog)); diff != "" {
					t.Fatalf("after %s (-target +catalog):\n%s", op.O, diff)
				}
				ordered = ordered || slices.ContainsFunc(want, func(c catalog.Collection) bool { return c.Ordered })
			}
			if ordered != (unique == ddl.Serialized) {
				t.Errorf("a collection that needs the log's order: %v", ordered)
			}
		})
	}
}
