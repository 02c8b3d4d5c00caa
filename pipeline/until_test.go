package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/oplog"
)

// What is behind the entry that is to be read last is not handed on: where it is
// kept back until it is due, the lanes would be drained only then.
func TestReadNoFurtherThanUntil(t *testing.T) {
	for until, want := range map[uint32]int{0: 5, 9: 1, 10: 1, 12: 3, 14: 5, 20: 5} {
		u := &upstream{}
		if until != 0 {
			u.until = oplog.NewOpTime(until, 1, 1)
		}
		var r oplog.Reply
		for s := range uint32(5) {
			r.Entries = append(r.Entries, oplog.Entry{Op: oplog.Op{OpTime: oplog.NewOpTime(10+s, 1, 1)}})
		}
		if u.cut(&r); len(r.Entries) != want {
			t.Errorf("until %d: %d entries, want %d", until, len(r.Entries), want)
		}
	}
}
