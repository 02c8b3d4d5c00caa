package promote

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
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

// TestKeptBackUpTo: a collection that waited for an index build has everything up to the recovery point, and that of the
// backlog which the barrier's lane had written. It is behind only if lanes are ahead.
func TestKeptBackUpTo(t *testing.T) {
	t.Parallel()
	at := func(n uint32) checkpoint.Position { return checkpoint.Position{OpTime: oplog.NewOpTime(100, n, 1)} }
	all := func(p checkpoint.Position) checkpoint.Position {
		p.Op = checkpoint.AllOps
		return p
	}
	none := checkpoint.Position{}
	for name, c := range map[string]struct {
		point          uint32
		lane, barrier  checkpoint.Position
		began, reaches checkpoint.Position // reaches is none if it is not behind
	}{
		"the build had not ended":              {point: 2, lane: at(9), barrier: at(1), began: at(3), reaches: at(3)},
		"a part of the backlog was written":    {point: 2, lane: at(9), barrier: at(6), began: at(3), reaches: at(6)},
		"the recovery point is after it":       {point: 7, lane: at(9), barrier: at(6), began: at(3), reaches: all(at(7))},
		"all of the backlog was written":       {point: 9, lane: at(9), barrier: at(8), began: at(3), reaches: none},
		"the backlog was written past a point": {point: 7, lane: at(7), barrier: at(8), began: at(3), reaches: at(8)},
	} {
		st := checkpoint.State{
			Lanes: []checkpoint.Position{c.lane}, LanesAnnounced: []checkpoint.Position{none}, Barrier: c.barrier,
			KeptBack: []checkpoint.KeptBack{{NS: "shop.a", Since: c.began}},
		}
		var want []checkpoint.KeptBack
		if c.reaches != none {
			want = []checkpoint.KeptBack{{NS: "shop.a", Since: c.reaches}}
		}
		var r Recovery
		r.set(&st, at(c.point).OpTime)
		if diff := cmp.Diff(want, r.KeptBack); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if st.KeptBack[0].Since != c.began {
			t.Errorf("%s: the state was changed", name)
		}
	}
}
