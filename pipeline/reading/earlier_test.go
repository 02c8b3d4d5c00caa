package reading

import (
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Reading starts before the checkpoint's FetchFrom until the entry that needed it has
// been applied, and no longer: the source's oplog is limited.
func TestReadEarlierUntilApplied(t *testing.T) {
	at := func(s uint32) oplog.OpTime { return oplog.NewOpTime(s, 1, 1) }
	o := &Oplog{earlier: at(10), earlierFor: at(30)}
	for _, c := range []struct{ applied, fetchFrom, want uint32 }{
		{20, 20, 10},
		{29, 10, 10},
		{30, 30, 30},
		{90, 80, 80},
	} {
		st := checkpoint.State{Applied: at(c.applied), FetchFrom: at(c.fetchFrom)}
		if got := o.From(st); got != at(c.want) {
			t.Errorf("with %d applied it is read from %s, want %s", c.applied, got, at(c.want))
		}
	}
}
