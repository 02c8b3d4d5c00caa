package initialsync

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestRelayDamaged: what can be read of a damaged relay log is kept for Salvage when a process opens
// it, as the source may be gone; it is removed once the target has it.
func TestRelayDamaged(t *testing.T) {
	t.Parallel()
	newLog := func(dir string) *Log {
		l := NewLog(LogConfig{Link: "mirror", Dir: dir, MinFree: 1, Relay: 8 << 20})
		l.instance, l.dir = "i", l.dirOf("i")
		return l
	}
	dir := t.TempDir()
	l := newLog(dir)
	at := func(n int) oplog.OpTime { return oplog.NewOpTime(100, uint32(n), 1) }
	s := must.Get(l.openSpool(l.idOf(nil)))(t)
	must.Succeed(t, s.Start(at(1)))
	in := make(chan oplog.Reply, 9)
	for n := 1; n <= cap(in); n++ {
		raw := must.Get(bson.Marshal(bson.D{
			{Key: "ts", Value: at(n).TS},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "op", Value: "n"},
			{Key: "ns", Value: ""},
			{Key: "wall", Value: time.UnixMilli(1)},
			{Key: "o", Value: bson.D{{Key: "x", Value: make([]byte, 300<<10)}}},
		}))(t)
		in <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(raw))(t)}, Bytes: int64(len(raw)), Received: time.UnixMilli(1)}
	}
	close(in)
	must.Succeed(t, s.Store(t.Context(), in))
	must.Succeed(t, s.Close())
	files := must.Get(filepath.Glob(filepath.Join(l.dir, "*.spool")))(t)
	if len(files) < 3 {
		t.Fatal(files)
	}
	content := must.Get(os.ReadFile(files[1]))(t) // the end of the last one may be torn
	content[len(content)*2/3] ^= 0x40
	must.Succeed(t, os.WriteFile(files[1], content, 0o600))
	salvage := func(what string) Salvaged {
		o := newLog(dir)
		found, ok, err := o.Salvage("i", nil, at(1), false)
		must.Succeed(t, err)
		must.Succeed(t, o.Close())
		if !ok || found.Damage == nil || !found.Last.After(at(1)) || !found.Last.Before(at(9)) {
			t.Errorf("%s: %v, %+v", what, ok, found)
		}
		return found
	}
	before := salvage("before")
	must.Succeed(t, l.open(nil))
	if after := salvage("after"); after.Last != before.Last || after.Dir != spool.AsideDir(l.dir) {
		t.Errorf("a process has opened it, and up to %s can be read in %s; before up to %s", after.Last, after.Dir, before.Last)
	}
	l.forgetAside(at(1))
	salvage("while the target lacks it")
	l.forgetAside(before.Last)
	if there := must.Get(spool.Found(spool.AsideDir(l.dir)))(t); there {
		t.Error("the target has it, and it is still there")
	}
	must.Succeed(t, l.Close())
}
