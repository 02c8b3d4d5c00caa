package monitor

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// TestStanding: a link advances by what it applies and copies, not by a copy that is
// started again.
func TestStanding(t *testing.T) {
	t.Parallel()
	at := func(s uint32) oplog.OpTime { return oplog.NewOpTime(s, 1, 1) }
	for name, c := range map[string]struct {
		before, now Standing
		want        bool
	}{
		"nothing":              {Standing{applied: at(5)}, Standing{applied: at(5)}, false},
		"entries":              {Standing{applied: at(5)}, Standing{applied: at(6)}, true},
		"operations":           {Standing{applied: at(5), ops: 3}, Standing{applied: at(5), ops: 4}, true},
		"operations of copies": {Standing{copy: 1, ops: 3}, Standing{copy: 2, ops: 4}, false},
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

// TestKeptBack: the state names the collections that wait for an index build, in the present
// attempt, and counts the operations applied meanwhile although the position does not advance.
func TestKeptBack(t *testing.T) {
	t.Parallel()
	m := New(Config{Waits: &mongo.Waits{}})
	var stats applier.Stats
	m.Began(Attempt{Start: at(10, 10), Counts: func() applier.Stats { return stats }})
	before := m.Standing()
	stats.Ops = 7
	stats.KeptBack = []applier.KeptBack{{NS: "d.a", Since: time.Now().Add(-time.Minute)}, {NS: "d.b", Since: time.Now().Add(-time.Hour)}}
	if s := m.Snapshot(); !strings.Contains(s.Reason, "for 1h0m0s: d.a, d.b") || len(m.KeptBack()) != 2 {
		t.Errorf("%q", s.Reason)
	}
	if !m.Standing().Beyond(before) {
		t.Error("what was applied does not count")
	}
	m.Began(Attempt{})
	if s := m.Snapshot(); len(s.Applier.KeptBack) > 0 || len(m.KeptBack()) > 0 || s.Applier.Ops != 7 {
		t.Errorf("%q, %d operations", s.Reason, s.Applier.Ops)
	}
}
