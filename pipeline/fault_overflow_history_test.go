package pipeline_test

import (
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// storeLost appends an entry to the files of a link that does not run, which the source's
// history does not have, and returns their folder.
func (o *overflowing) storeLost(t *testing.T) (dir string) {
	t.Helper()
	store := must.Get(o.metadata())(t)
	link, _, err := store.Look(t.Context(), lease.NewWatch("x"))
	must.Succeed(t, err)
	dirs := must.Get(filepath.Glob(filepath.Join(o.spool, "*")))(t)
	if len(dirs) != 1 {
		t.Fatal(dirs)
	}
	files := must.Get(spool.Open(spool.Config{Dir: dirs[0], ID: "mirror/" + link.Instance, MinFree: 1}))(t)
	_, last, ok := files.Bounds()
	if !ok {
		t.Fatal("nothing is on disk")
	}
	raw := must.Get(bson.Marshal(bson.D{
		{Key: "op", Value: "n"},
		{Key: "ns", Value: ""},
		{Key: "o", Value: bson.D{{Key: "msg", Value: "lost"}}},
		{Key: "ts", Value: bson.Timestamp{T: last.TS.T, I: last.TS.I + 1000}},
		{Key: "t", Value: last.Term},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: time.Now()},
	}))(t)
	in := make(chan oplog.Reply, 1)
	in <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(raw))(t)}, Bytes: int64(len(raw)), Received: time.Now()}
	close(in)
	must.Succeed(t, files.Store(t.Context(), in))
	must.Succeed(t, files.Close())
	return dirs[0]
}

// TestOverflowLostHistory: the last entry that was found on disk is not in the source's
// history. Nothing of it is applied, and the link reads on from the checkpoint.
func TestOverflowLostHistory(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 512)
	o.hang()
	o.write(60)
	o.stored("a")
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.storeLost(t)
	o.write(1) // the source has other entries after the last common one
	must.Succeed(t, o.start("b"))
	o.goOn()
	if err := o.untilOf(o.links["b"], "the spool to be given up", func() bool { return o.told("the entries found on disk are not of the source's history") }); err != nil {
		t.Fatal(err)
	}
	o.same("b")
}
