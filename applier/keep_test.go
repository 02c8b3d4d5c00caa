package applier

import (
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/oplog"
)

// TestKeepKnowsWhatIsDirect: a span is written as a whole only if none of its operations, or each, is on a
// collection that transactions cannot write to.
func TestKeepKnowsWhatIsDirect(t *testing.T) {
	t.Parallel()
	w := fakeApplier(t, &nullTarget{}, 1, nil).writers[0]
	ordinary := &route{source: "db.a", target: "x.a", collection: anyCollection}
	capped := &route{source: "db.b", target: "x.b", collection: &catalog.Collection{Type: catalog.TypeCollection, Direct: true}}
	for _, tt := range []struct {
		routes []*route
		alike  bool
	}{
		{[]*route{ordinary, ordinary}, true},
		{[]*route{ordinary, capped}, false},
		{[]*route{capped, capped}, true},
		{[]*route{capped, ordinary, capped}, false},
		{[]*route{ordinary}, true},
	} {
		var items []work
		for i, r := range tt.routes {
			op := &oplog.Op{NS: "a view", Kind: oplog.KindInsert, OpTime: optimeOf(i)}
			items = append(items, work{op: routedOp{Op: op, route: r, mode: plan.ModeExact, direct: r.collection.Direct}})
		}
		w.keep(items)
		if w.span.alike != tt.alike || len(w.span.ops) != len(items) {
			t.Errorf("of %d operations: alike %t, want %t; %d operations", len(items), w.span.alike, tt.alike, len(w.span.ops))
		}
		for i, op := range w.span.ops {
			if r := tt.routes[i]; op.NS != r.source || op.Target != r.target || op.Collection != r.collection || op.OpTime != optimeOf(i) {
				t.Errorf("operation %d is %+v", i, op)
			}
		}
		if len(items) > 1 && w.span.part(0, 1).alike != tt.alike {
			t.Error("a part does not know what its span does")
		}
	}
}
