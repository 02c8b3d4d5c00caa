package pipeline

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
		before, now standing
		want        bool
	}{
		"nothing":              {standing{applied: at(5)}, standing{applied: at(5)}, false},
		"entries":              {standing{applied: at(5)}, standing{applied: at(6)}, true},
		"the first documents":  {standing{}, standing{copy: 1, docs: 3}, true},
		"a copy without any":   {standing{}, standing{copy: 1}, false},
		"documents":            {standing{copy: 1, docs: 3}, standing{copy: 1, docs: 4}, true},
		"the same documents":   {standing{copy: 1, docs: 3}, standing{copy: 1, docs: 3}, false},
		"an empty collection":  {standing{copy: 1, collections: 1}, standing{copy: 1, collections: 2}, true},
		"an index":             {standing{copy: 1, indexes: 1}, standing{copy: 1, indexes: 2}, true},
		"another copy":         {standing{copy: 1, docs: 3}, standing{copy: 2, docs: 9}, false},
		"another copy, behind": {standing{copy: 1, docs: 9}, standing{copy: 2, docs: 3}, false},
	} {
		if got := c.now.beyond(c.before); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
