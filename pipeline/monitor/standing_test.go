package monitor

import (
	"testing"

	"github.com/oplogrep/replicator/oplog"
)

// TestStanding: a link advances by what it applies and copies, not by a copy that is
// started anew.
func TestStanding(t *testing.T) {
	t.Parallel()
	at := func(s uint32) oplog.OpTime { return oplog.NewOpTime(s, 1, 1) }
	for name, c := range map[string]struct {
		before, now Standing
		want        bool
	}{
		"nothing":              {Standing{applied: at(5)}, Standing{applied: at(5)}, false},
		"entries":              {Standing{applied: at(5)}, Standing{applied: at(6)}, true},
		"the first documents":  {Standing{}, Standing{copy: 1, docs: 3}, true},
		"a copy without any":   {Standing{}, Standing{copy: 1}, false},
		"documents":            {Standing{copy: 1, docs: 3}, Standing{copy: 1, docs: 4}, true},
		"the same documents":   {Standing{copy: 1, docs: 3}, Standing{copy: 1, docs: 3}, false},
		"an empty collection":  {Standing{copy: 1, collections: 1}, Standing{copy: 1, collections: 2}, true},
		"an index":             {Standing{copy: 1, indexes: 1}, Standing{copy: 1, indexes: 2}, true},
		"another copy":         {Standing{copy: 1, docs: 3}, Standing{copy: 2, docs: 9}, false},
		"another copy, behind": {Standing{copy: 1, docs: 9}, Standing{copy: 2, docs: 3}, false},
	} {
		if got := c.now.Beyond(c.before); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
