package plan_test

import (
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// TestRelease: a released planner keeps no document of its plan alive.
func TestRelease(t *testing.T) {
	t.Parallel()
	for _, mode := range []plan.Mode{plan.ModeExact, plan.ModeCopied} {
		p := plan.NewPlanner(plan.Options{Coalesce: true})
		kept := func() weak.Pointer[byte] {
			doc := bsongen.FromJSON(t, `{"_id": 1, "pad": "`+strings.Repeat("x", 1<<20)+`"}`)
			op := plan.Op{Target: "d.c", Mode: mode}
			op.Kind, op.NS, op.O, op.ID = oplog.KindInsert, "d.c", doc, value(int32(1))
			if _, err := p.Build([]plan.Op{op}); err != nil {
				t.Fatal(err)
			}
			return weak.Make(&doc[0])
		}()
		runtime.GC()
		if kept.Value() == nil {
			t.Fatal("the plan does not have it")
		}
		p.Release()
		runtime.GC()
		if kept.Value() != nil {
			t.Errorf("mode %v: it is kept", mode)
		}
		runtime.KeepAlive(p)
	}
}
