package spool

import (
	"os"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestPeek: what a spool has on disk is told without opening it, while it is open and after
// it was closed, over several files, also if the last record is torn. A spool of another ID, or
// an empty folder, has nothing.
func TestPeek(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	peek := func(id string) [2]oplog.OpTime {
		t.Helper()
		first, last, ok, err := Peek(dir, id)
		must.Succeed(t, err)
		if !ok {
			return [2]oplog.OpTime{}
		}
		return [2]oplog.OpTime{first, last}
	}
	nothing := [2]oplog.OpTime{}
	want(t, "an empty folder", peek("a"), nothing)
	s := mustOpen(t, Config{Dir: dir, ID: "a", SegmentBytes: 1})
	want(t, "an empty spool", peek("a"), nothing)
	for n := 1; n <= 4; n++ {
		storeAll(t, s, reply(t, 10, n))
	}
	want(t, "an open spool", peek("a"), [2]oplog.OpTime{at(1), at(4)})
	must.Succeed(t, s.Forget(at(3)))
	want(t, "after entries were forgotten", peek("a"), [2]oplog.OpTime{at(3), at(4)})
	must.Succeed(t, s.Close())
	want(t, "a closed spool", peek("a"), [2]oplog.OpTime{at(3), at(4)})
	want(t, "another spool", peek("b"), nothing)
	list := files(t, dir)
	end := list[len(list)-1]
	must.Succeed(t, os.Truncate(end, must.Get(os.Stat(end))(t).Size()-1))
	want(t, "a torn end", peek("a"), [2]oplog.OpTime{at(3), at(3)})
	dir += "/none"
	want(t, "no folder", peek("a"), nothing)
}
