package ddl_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/oplog"
)

// renaming is a scope that mirrors old.* as new.*, and nothing else.
type renaming struct{ ddl.Scope }

func (renaming) Source(target oplog.Namespace) (oplog.Namespace, bool) {
	return "old." + target[len("new."):], target[:4] == "new."
}

// TestBySource: deferred options are shown by the source's collection; nil, for not known, stays
// distinct from empty.
func TestBySource(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		list ddl.Specs
		want map[oplog.Namespace][]string
	}{
		{nil, nil},
		{ddl.Specs{}, map[oplog.Namespace][]string{}},
		{ddl.Specs{{NS: "new.a", Index: "y"}, {NS: "new.b"}, {NS: "new.a", Index: "x"}, {NS: "far.c", Index: "z"}}, map[oplog.Namespace][]string{"old.a": {"x", "y"}}},
	} {
		if diff := gocmp.Diff(tt.want, tt.list.BySource(renaming{})); diff != "" {
			t.Error(diff)
		}
	}
}
