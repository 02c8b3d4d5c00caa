package pipeline_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/promote"
	"github.com/oplogrep/replicator/scope"
)

// newRelayed starts a link with a relay log, which has read everything.
func newRelayed(t *testing.T) *overflowing {
	t.Helper()
	alone := mongosim.NoMoods("what is read, and when it is durable, decides")
	w := newWorld(t, mongosim.Options{Moods: alone}, mongosim.Options{Moods: alone})
	o := &overflowing{world: w, spool: t.TempDir()}
	o.cfg = pipeline.Config{Link: "mirror", MetaDB: "replicator", Writers: 3, Memory: memory.MinLink, RelayBytes: 64 << 20}
	o.cfg.Copy.SpoolDir, o.cfg.Copy.SpoolFree = o.spool, 1
	must.Succeed(t, o.start("a"))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	return o
}

// newBehind returns a link that has ended, with entries in its relay log, up to last, which the target does not have.
func newBehind(t *testing.T) (o *overflowing, last oplog.OpTime) {
	t.Helper()
	o = newRelayed(t)
	o.hang()
	o.write(3)
	o.stored("a")
	last = o.newest()
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.goOn()
	return o, last
}

// promote promotes the link.
func (o *overflowing) promote(change func(*promote.Config)) (promote.Recovery, error) {
	s := must.Get(scope.New(scope.Config{}))(o.t)
	cfg := &promote.Config{Pipeline: o.cfg, By: "test", OnStep: func(s string) { o.t.Log(s) }}
	cfg.Pipeline.Scope = s
	if change != nil {
		change(cfg)
	}
	return promote.Run(o.t.Context(), cfg, connect(o.t, o.target.Set, theProgram))
}

// TestPromote: what the relay log has and the target does not is applied without the source.
func TestPromote(t *testing.T) {
	t.Parallel()
	o, last := newBehind(t)
	would := must.Get(o.promote(func(c *promote.Config) { c.DryRun = true }))(t)
	got := must.Get(o.promote(nil))(t)
	again := must.Get(o.promote(nil))(t)
	for name, r := range map[string]promote.Recovery{"dry run": would, "promoted": got, "again": again} {
		if !r.At.Equal(last) || !r.Exact() || r.Wall != got.Wall {
			t.Errorf("%s: exact %v up to %s, %d, want %s", name, r.Exact(), r.At, r.Wall, last)
		}
	}
	if n, ok := got.MissingAtMost(); n != 0 || !ok {
		t.Errorf("%d entries are missing, known %v", n, ok)
	}
	must.Succeed(t, o.equalNow())
}

// equalNow compares the sets.
func (o *overflowing) equalNow() error {
	report, err := o.compared(o.links["a"])
	if err == nil && !report.Equal() {
		o.t.Error(report.String())
	}
	return err
}

// TestPromoteLanesAhead: without a relay log, lanes that are further than the checkpoint are named;
// with it, all of them get to the same entry.
func TestPromoteLanesAhead(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	o.cfg.CheckpointInterval = time.Hour
	must.Succeed(t, o.start("b"))
	first, _, err := must.Get(o.metadata())(t).Load(t.Context())
	must.Succeed(t, err)
	var before, last oplog.OpTime
	for !before.After(first.Applied) || !before.Before(last) { // there is one checkpoint in an hour
		o.write(1)
		last = o.newest()
		must.Succeed(t, o.untilOf(o.links["b"], "all of it to be applied", func() bool { return !o.links["b"].p.Snapshot().Log.Applied.Before(last) }))
		o.mu.Lock()
		before = o.links["b"].reached
		o.mu.Unlock()
	}
	o.links["b"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["b"])
	without := must.Get(o.promote(func(c *promote.Config) { c.DryRun, c.Pipeline.Copy.SpoolDir = true, t.TempDir() }))(t)
	if without.Exact() || !without.At.Equal(before) || len(without.Ahead) == 0 {
		t.Errorf("without a relay log: exact %v up to %s, ahead %v, want %s", without.Exact(), without.At, without.Ahead, before)
	}
	for _, a := range without.Ahead {
		if !a.At.OpTime.After(without.At) || a.At.OpTime.After(last) {
			t.Errorf("lane %d is said to be at %s", a.Lane, a.At)
		}
	}
	got := must.Get(o.promote(nil))(t)
	if !got.Exact() || !got.At.Equal(last) {
		t.Errorf("with a relay log: exact %v up to %s, want %s", got.Exact(), got.At, last)
	}
	must.Succeed(t, o.equalNow())
}

// TestPromoteWayBack: the relay log of a way back has entries that came from the target, and cannot be
// applied without the source, which tells them. The link is promoted to what its lanes have.
func TestPromoteWayBack(t *testing.T) {
	t.Parallel()
	o, last := newBehind(t)
	st, _, err := must.Get(o.metadata())(t).Load(t.Context())
	must.Succeed(t, err)
	back := bson.D{
		{Key: "link", Value: "forth"},
		{Key: "instance", Value: "0123456789abcdef"},
		{Key: "at", Value: time.UnixMilli(1)},
		{Key: "start", Value: bson.D{{Key: "ts", Value: st.Applied.TS}, {Key: "t", Value: st.Applied.Term}}},
	}
	must.Succeed(t, o.target.write(t.Context(), "replicator", bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "mirror"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "back", Value: back}}}}},
	}}}}))
	would := must.Get(o.promote(func(c *promote.Config) { c.DryRun = true }))(t)
	got := must.Get(o.promote(nil))(t)
	if got.Over == nil || !got.At.Before(last) {
		t.Errorf("promoted %v, to %s; the relay log ends at %s", got.Over, got.At, last)
	}
	if !would.At.Equal(got.At) || would.Untried != 0 || would.Exact() != got.Exact() {
		t.Errorf("a dry run says %s, exact %v, with %d entries untried; it became %s, exact %v", would.At, would.Exact(), would.Untried, got.At, got.Exact())
	}
}

// TestPromoteOpenTransaction: the beginning of a transaction at the end of the relay log is not
// applied, and is told of.
func TestPromoteOpenTransaction(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.write(1)
	must.Succeed(t, o.caughtUp(o.links["a"]))
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	at := o.append(t, func() bson.D {
		return bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: "admin.$cmd"},
			{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{bson.D{
				{Key: "op", Value: "i"}, {Key: "ns", Value: "db.c"}, {Key: "o", Value: bson.D{{Key: "_id", Value: "open"}}}, {Key: "o2", Value: bson.D{{Key: "_id", Value: "open"}}},
			}}}, {Key: "partialTxn", Value: true}}},
			{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}},
			{Key: "txnNumber", Value: int64(1)},
			{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}},
		}
	})
	for range 2 { // a second promotion reports the same recovery point
		got := must.Get(o.promote(nil))(t)
		if !got.Exact() || !got.At.Equal(at) || len(got.Open) != 1 || got.Open[0].Ops != 1 || !got.Open[0].First.Equal(at) || got.Open[0].Namespaces[0] != "db.c" {
			t.Errorf("exact %v up to %s, open %+v, want %s", got.Exact(), got.At, got.Open, at)
		}
		if n := got.Over.Promoted.Open; n != 1 {
			t.Errorf("%d open transactions are recorded", n)
		}
	}
	must.Succeed(t, o.equalNow())
}

// append appends an entry to the relay log of a link that does not run.
func (o *overflowing) append(t *testing.T, entry func() bson.D) oplog.OpTime {
	t.Helper()
	store := must.Get(o.metadata())(t)
	link, _, err := store.Look(t.Context(), lease.NewWatch("x"))
	must.Succeed(t, err)
	dirs := must.Get(filepath.Glob(filepath.Join(o.spool, "*")))(t)
	files := must.Get(spool.Open(spool.Config{Dir: dirs[0], ID: "mirror/" + link.Instance, MinFree: 1}))(t)
	_, last, _ := files.Bounds()
	ts := bson.Timestamp{T: last.TS.T, I: last.TS.I + 1}
	raw := must.Get(bson.Marshal(append(entry(), bson.E{Key: "ts", Value: ts}, bson.E{Key: "t", Value: last.Term}, bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: time.Now()})))(t)
	in := make(chan oplog.Reply, 1)
	in <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(raw))(t)}, Bytes: int64(len(raw)), Received: time.Now()}
	close(in)
	must.Succeed(t, files.Store(t.Context(), in))
	must.Succeed(t, files.Close())
	return oplog.OpTime{TS: ts, Term: last.Term}
}

// TestPromoteRefuses: a link that goes on, or has ended otherwise, is not promoted; and one that was
// promoted does not go on.
func TestPromoteRefuses(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	other := must.Get(scope.New(scope.Config{Exclude: []string{"x"}}))(t)
	if _, err := o.promote(func(c *promote.Config) { c.Pipeline.Scope = other }); !errors.Is(err, checkpoint.ErrSettings) {
		t.Errorf("with other settings: %v", err)
	}
	if _, err := o.promote(func(c *promote.Config) { c.Pipeline.Link = "none" }); !errors.Is(err, checkpoint.ErrNoLink) {
		t.Errorf("of another link: %v", err)
	}
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	must.Get(o.promote(nil))(t)
	must.Succeed(t, o.start("b"))
	o.awaitEnd(o.links["b"])
	over, ok := errors.AsType[*checkpoint.OverError](o.links["b"].err)
	if !ok || over.Over.Promoted == nil || failure.Classify(over).Code != failure.ExitResync || !strings.Contains(over.Error(), "replicator rewind") {
		t.Errorf("it goes on after that, or ends with %v", o.links["b"].err)
	}
}

// TestPromoteWhileConverting: a cutover that cannot go on without its source, and has begun to convert
// options, does not keep the target from being promoted.
func TestPromoteWhileConverting(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	ctx := t.Context()
	store := must.Get(checkpoint.New(checkpoint.Config{Target: connect(t, o.target.Set, theProgram), DB: "replicator", Link: "mirror"}))(t)
	link := must.Get(store.Acquire(ctx, 0))(t)
	must.Succeed(t, link.Convert(ctx, checkpoint.Converting{ID: "c", By: "ann", Since: time.Now()}))
	got := must.Get(o.promote(nil))(t)
	st, _, err := store.Load(ctx)
	if err != nil || st.Converting != nil || st.Over == nil || !got.Exact() {
		t.Errorf("the link is %+v, %v; promoted at %+v", st, err, got)
	}
}

// TestRelayDrains: a drain applies what the relay log has.
func TestRelayDrains(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.write(3)
	last := o.newest()
	must.Succeed(t, o.untilOf(o.links["a"], "it to be read", func() bool {
		s := o.links["a"].p.Snapshot().Spool
		return s != nil && !s.Last.Before(last)
	}))
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	if err := o.links["a"].err; err != nil {
		t.Errorf("the drain ended with %v", err)
	}
	must.Succeed(t, o.equalNow())
}

// TestRelayWithoutDisk: a directory that cannot be used costs the link nothing but the relay log.
func TestRelayWithoutDisk(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	o.cfg.Copy.SpoolFree = 1 << 60
	must.Succeed(t, o.start("b"))
	o.write(2)
	must.Succeed(t, o.caughtUp(o.links["b"]))
	if s := o.links["b"].p.Snapshot(); s.RelayOff == "" || s.Spool != nil {
		t.Errorf("relay log off for %q, spool %v", s.RelayOff, s.Spool)
	}
	must.Succeed(t, o.equalNow())
}
