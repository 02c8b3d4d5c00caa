package ddl_test

import (
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// A refusal concerns the indexes that its code can mean; a code that names no kind
// concerns all indexes that can refuse documents.
func TestMayRefuse(t *testing.T) {
	t.Parallel()
	keys := []string{
		`{"a": 1}`, `{"a": 1, "b": -1}`, `{"a": "2d"}`, `{"a": "2dsphere", "b": 1}`, `{"a": "2dsphere_bucket"}`, `{"a": "hashed"}`,
		`{"_fts": "text", "_ftsx": 1}`, `{"$**": 1}`, `{"a.0.b": 1}`,
	}
	const all = "[1 2 3 4 5 6 7 8]"
	for code, want := range map[servererr.Code]string{
		servererr.CannotIndexParallelArrays: "[1 3 6]",
		16746:                               "[8]",
		16755:                               "[3 4]",
		16756:                               "[3 4]",
		183934:                              "[3 4]",
		183493:                              "[3 4]",
		167551:                              "[3 4]",
		167561:                              "[3 4]",
		servererr.CannotBuildIndexKeys:      "[3 4]",
		13026:                               "[2]",
		13027:                               "[2]",
		13068:                               "[2]",
		16804:                               "[2]",
		16766:                               "[5]",
		17261:                               "[6]",
		17262:                               "[6]",
		0:                                   all,
		12345:                               all,
	} {
		var got []int
		for i, key := range keys {
			if ddl.MayRefuse(servererr.KeyFaultOf(servererr.New(code, "Insert of geo object exceeded maximum number of generated keys")), bsongen.FromJSON(t, `{"key": `+key+`}`)) {
				got = append(got, i)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%d: %v, want %s", code, got, want)
		}
	}
}

// TestAbsentOfOthers: the end of a copy builds the indexes of the copied collections, and
// none of a collection that is left out for a resync: that may be a different one by now,
// and its indexes are absent because its own copy has not ended.
func TestAbsentOfOthers(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "7.0"} {
		b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
		hold := func(coll string) {
			t.Helper()
			op := b.operation(t, `c db.$cmd {"createIndexes": "`+coll+`", "v": 2, "key": {"x": 1}, "name": "x_1"}`)
			must.Succeed(t, b.exec.DeferBuild(t.Context(), op, "x_1"))
		}
		b.must(t, "db", `{"create": "mine"}`)
		b.must(t, "db", `{"create": "other"}`)
		b.restart(t)
		hold("mine")
		hold("other")
		without, err := scope.New(scope.Config{Exclude: []string{"db.other"}})
		if err != nil {
			t.Fatal(err)
		}
		whole := b.cfg
		b.cfg.Scope = without
		b.restart(t)
		mine := b.exec
		if _, _, err := b.cfg.Catalog.Get(t.Context(), "db.other"); err != nil {
			t.Fatal(err)
		}
		b.must(t, "db", `{"drop": "other"}`)
		b.must(t, "db", `{"create": "other"}`)
		b.cfg = whole
		b.restart(t)
		hold("other")

		b.events = nil
		if err := mine.EndCopy(t.Context(), oplog.OpTime{TS: b.read, Term: 1}); err != nil {
			t.Errorf("%s: %v", dialect, err)
		}
		deferred, err := ddl.ReadDeferred(t.Context(), b, "replicator", "link")
		if err != nil {
			t.Fatal(err)
		}
		if len(deferred) != 1 || deferred[0].NS != "db.other" || !deferred[0].Absent {
			t.Errorf("%s: deferred is %v; told: %s", dialect, deferred, b.told())
		}
		for ns, want := range map[oplog.Namespace]int{"db.mine": 2, "db.other": 1} {
			if got, err := catalog.Indexes(t.Context(), b, ns); err != nil || len(got) != want {
				t.Errorf("%s: %s has %d indexes, want %d: %v", dialect, ns, len(got), want, err)
			}
		}
	}
}
