package promote

import (
	"testing"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/oplog"
)

// TestMissingAtMost: the missing entries are counted within a second of one term only, and their number
// is never reported too low.
func TestMissingAtMost(t *testing.T) {
	t.Parallel()
	at := oplog.NewOpTime(100, 5, 3)
	for name, c := range map[string]struct {
		heard oplog.OpTime
		cut   bool
		want  uint32
		known bool
	}{
		"nothing heard":      {},
		"nothing more heard": {heard: at, known: true},
		"within the second":  {heard: oplog.NewOpTime(100, 9, 3), want: 4, known: true},
		"a second later":     {heard: oplog.NewOpTime(101, 9, 3)},
		"another term":       {heard: oplog.NewOpTime(100, 9, 4)},
		"a damaged log":      {heard: oplog.NewOpTime(100, 9, 3), cut: true},
	} {
		r := Recovery{At: at}
		if !c.heard.IsNull() {
			r.Log.Heard = &spool.Heard{OpTime: c.heard}
		}
		if c.cut {
			r.Log.Damage = &spool.Damage{}
		}
		if n, known := r.MissingAtMost(); n != c.want || known != c.known {
			t.Errorf("%s: %d entries, known %v, want %d, %v", name, n, known, c.want, c.known)
		}
	}
}
