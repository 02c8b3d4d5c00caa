package ddl_test

import (
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestCopierLeavesOut: who makes a copy gets the refusal of a view, to report it, and the executor records nothing.
func TestCopierLeavesOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.cfg.Copier = true
	b.restart(t)
	op := b.operation(t, `i db.system.views {"_id": "db.v", "viewOn": "a", "pipeline": [{"$unknown": 1}]}`)
	if err := b.exec.Apply(t.Context(), op, ddl.Copied); !servererr.IsViewRefused(err) {
		t.Errorf("refused: %v", err)
	}
	if l := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t); len(l.Views) != 0 {
		t.Errorf("lacking %v", l.Views)
	}
}
