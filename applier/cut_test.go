package applier

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// cutter is a live applier that makes cuts on request.
type cutter struct {
	*live
	now  chan struct{}
	told chan checkpoint.Cut
	mu   sync.Mutex
	logs []string // guarded by mu
}

func (r *rig) cutter(t *testing.T, set func(*Config)) *cutter {
	t.Helper()
	c := &cutter{now: make(chan struct{}), told: make(chan checkpoint.Cut, 1000)}
	c.live = r.live(t, func(cfg *Config) {
		cfg.CutNow, cfg.OnCut = c.now, func(made checkpoint.Cut) { c.told <- made }
		cfg.Observer = func(e event.Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.logs = append(c.logs, e.Message())
		}
		if set != nil {
			set(cfg)
		}
	})
	return c
}

// ask asks for a cut.
func (c *cutter) ask() {
	c.t.Helper()
	select {
	case c.now <- struct{}{}:
	case err := <-c.done:
		c.t.Fatalf("the applier has ended: %v", err)
	}
}

// made waits for the next cut.
func (c *cutter) made() checkpoint.Cut {
	c.t.Helper()
	select {
	case made := <-c.told:
		return made
	case err := <-c.done:
		c.t.Fatalf("the applier has ended: %v", err)
	case <-time.After(time.Minute):
		c.t.Fatalf("no cut; %+v", c.Stats())
	}
	return checkpoint.Cut{}
}

// asOf reads collections as of a cluster time.
func (g *simTarget) asOf(t fataler, ts bson.Timestamp, namespaces ...oplog.Namespace) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, ns := range namespaces {
		reply := g.run(t, ns.DB(), bson.D{
			{Key: "find", Value: ns.Collection()},
			{Key: "batchSize", Value: 100_000},
			{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: ts}}},
		})
		found, _, err := batchOf(reply)
		if err != nil {
			t.Fatalf("read %s: %v", ns, err)
		}
		for _, doc := range found {
			docs[string(ns)+" "+doc.Lookup("_id").String()] = doc.String()
		}
	}
	return docs
}

// cutNamespaces are those of a cutLog.
var cutNamespaces = []oplog.Namespace{"db.a", "db.b", "db.c"}

// cutLog is a log with the data after each of its entries.
type cutLog struct {
	*sourceLog
	after []map[string]string
}

func (l *cutLog) note(entries ...bson.D) {
	state := map[string]string{}
	if n := len(l.after); n > 0 {
		maps.Copy(state, l.after[n-1])
	}
	for _, e := range entries {
		ns := e[1].Value.(string)
		doc := e[2].Value.(bson.D)
		if e[0].Value != "i" {
			id := e[3].Value.(bson.D)[0].Value
			v := e[2].Value.(bson.D)[1].Value.(bson.D)[0].Value.(bson.D)[0].Value
			doc = bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}}
		}
		raw := bson.Raw(must.Get(bson.Marshal(doc))(l.t))
		state[ns+" "+raw.Lookup("_id").String()] = raw.String()
	}
	l.after = append(l.after, state)
}

// newCutLog draws a log of single operations and transactions on documents of three
// collections, in batches.
func newCutLog(t *testing.T, seed uint64, entries int) *cutLog {
	t.Helper()
	l, rnd := &cutLog{sourceLog: newLog(t)}, rand.New(rand.NewPCG(seed, 1))
	for id := range 8 {
		for _, ns := range cutNamespaces {
			op := insertOp(string(ns), doc(id, 0))
			l.note(op)
			l.add(op)
		}
	}
	l.end()
	draw := func(v int) bson.D { return setOp(string(cutNamespaces[rnd.IntN(3)]), rnd.IntN(8), v) }
	for v := 1; v <= entries; v++ {
		if rnd.IntN(4) == 0 {
			ops := []bson.D{draw(v), draw(v), draw(v)}
			l.note(ops...)
			l.add(l.transactionOp(ops...))
		} else {
			op := draw(v)
			l.note(op)
			l.add(op)
		}
		if rnd.IntN(6) == 0 {
			l.end()
		}
	}
	l.end()
	return l
}

// at returns the data after an entry.
func (l *cutLog) at(optime oplog.OpTime) map[string]string {
	return l.after[int(optime.TS.T)-int(start.TS.T)-1]
}

func (g *simTarget) prepareCuts(t fataler) {
	for _, ns := range cutNamespaces {
		g.run(t, ns.DB(), bson.D{{Key: "create", Value: ns.Collection()}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	}
}

// At each cut the target is exactly the log's prefix: no operation before it is missing,
// none after it is visible, and transactions are whole, in whichever lanes they are.
func TestCutIsPrefix(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 4, mongosim.Options{Members: 1, SnapshotHistory: 5 * time.Minute})
			r.target.prepareCuts(t)
			l := newCutLog(t, seed, 120)
			c := r.cutter(t, func(cfg *Config) { cfg.FlushDocs, cfg.CoalesceWindow, cfg.Relaxed = 3, 3, seed == 2 })
			cuts, rnd := []checkpoint.Cut{}, rand.New(rand.NewPCG(seed, 2))
			for _, b := range l.batches() {
				c.in <- b
				if rnd.IntN(4) == 0 {
					continue
				}
				c.ask()
				made := c.made()
				if made.Source != b.Last || made.SourceWall != int64(b.Wall) {
					t.Errorf("a cut at %s (%d) after %s", made.Source, made.SourceWall, b.Last)
				}
				cuts = append(cuts, made)
				if seed == 0 && len(cuts) == 1 {
					<-time.After(cutAgain * 5 / 4) // one request makes one cut, also if it had to wait
				}
			}
			c.drain()
			for _, made := range cuts {
				got := r.target.asOf(t, made.Target, cutNamespaces...)
				if diff := cmp.Diff(l.at(made.Source), got); diff != "" {
					t.Errorf("the cut at %s (-want +got):\n%s", made.Source, diff)
				}
			}
			listed := must.Get(r.store.Cuts(t.Context()))(t)
			if len(cuts) < 11 || len(listed) != 10 || listed[0].Target != cuts[len(cuts)-1].Target || listed[9].Source != cuts[len(cuts)-10].Source {
				t.Errorf("%d cuts, listed are %v", len(cuts), listed)
			}
		})
	}
}

// isRecord reports whether a command writes the record of a cut, isConfirmation whether it
// confirms one.
func isRecord(cmd mongo.Command) bool {
	return simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == metadata.Cuts && cmd.Body.Lookup("lsid").Type != 0
}

func isConfirmation(cmd mongo.Command) bool {
	return simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == metadata.Cuts && cmd.Body.Lookup("lsid").Type == 0
}

// heldFlushes are flushes whose commits are held. A command that must wait for them has come too early if it is sent
// before their release.
type heldFlushes struct{ released, early chan struct{} }

// holdFlushes holds the commits of all flushes from now on.
func (r *rig) holdFlushes(mustWait func(cmd mongo.Command) bool) *heldFlushes {
	h, sessions := &heldFlushes{make(chan struct{}), make(chan struct{})}, sync.Map{}
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		session := cmd.Body.Lookup("lsid", "id").String()
		switch {
		case mustWait(cmd):
			select {
			case <-h.released:
			default:
				close(h.early)
			}
		case cmd.DB == "db":
			sessions.Store(session, true)
		case simcaller.Name(cmd) == "commitTransaction":
			if _, flush := sessions.Load(session); flush {
				<-h.released
			}
		}
		return nil, false
	})
	return h
}

// releaseOnceAwaited releases the flushes once the applier waits for its lanes.
func (h *heldFlushes) releaseOnceAwaited(t *testing.T, stats func() Stats) {
	t.Helper()
	defer close(h.released)
	for begun := time.Now(); stats().WaitsFor != idleLanes.String(); {
		select {
		case <-h.early:
			t.Fatal("a command that waits for the flushes in flight was sent before they ended")
		case <-time.After(time.Millisecond):
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("the lanes are not waited for: %+v", stats())
		}
	}
}

// A cut waits for a flush in flight: its record is not sent before the flush is acknowledged.
func TestCutWaitsForFlushes(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 0)
	c := r.cutter(t, nil)
	h := r.holdFlushes(isRecord)
	c.send(l.sourceLog, start)
	c.ask()
	h.releaseOnceAwaited(t, c.Stats)
	if made := c.made(); made.Source != l.optime() {
		t.Errorf("a cut at %s, want %s", made.Source, l.optime())
	}
	c.drain()
}

// Lanes continue as soon as the primary has acknowledged the record; the majority is
// awaited meanwhile, and the cut is told only then.
func TestCutLetsLanesContinue(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 40)
	c := r.cutter(t, nil)
	c.ask()
	c.made() // the metadata are prepared
	hold, committed := make(chan struct{}), make(chan struct{}, 2)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if isConfirmation(cmd) {
			committed <- struct{}{}
			<-hold
		}
		return nil, false
	})
	batches := l.batches()
	c.in <- batches[0]
	c.ask()
	<-committed
	for _, b := range batches[1:] {
		c.in <- b
	}
	c.reaches(l.optime())
	c.ask() // the first one is not confirmed: it comes later
	if len(c.told) > 0 {
		t.Error("a cut was told before it was confirmed")
	}
	close(hold)
	if first := c.made(); first.Source != batches[0].Last {
		t.Errorf("the first cut is at %s, want %s", first.Source, batches[0].Last)
	}
	if second := c.made(); second.Source != l.optime() {
		t.Errorf("the second cut is at %s, want %s", second.Source, l.optime())
	}
	c.drain()
}

// A cut whose commit a failover of the target takes back is not told, and neither is it in
// the metadata.
func TestCutTakenBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r := newRig(t, 4, mongosim.Options{Members: 3, ElectionTimeout: 5 * time.Second})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 0)
	c := r.cutter(t, nil)
	c.send(l.sourceLog, start)
	c.ask()
	first := c.made()
	old := must.Get(r.target.set.AwaitPrimary(ctx))(t)
	r.target.direct(old)
	r.target.set.Isolate(old.ID())
	confirming := make(chan struct{})
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if isConfirmation(cmd) {
			select {
			case confirming <- struct{}{}:
			case <-ctx.Done():
			}
		}
		return nil, false
	})
	c.ask()
	<-confirming
	r.target.intercept(nil)
	failOver(ctx, t, r.target, old)
	taken := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.logs, func(s string) bool { return strings.Contains(s, "has taken back a consistent cut") })
	}
	for !taken() && len(c.told) == 0 && ctx.Err() == nil {
		must.Succeed(t, mongo.Pause(ctx, time.Millisecond))
	}
	if len(c.told) > 0 {
		t.Errorf("told: %v", <-c.told)
	}
	listed := must.Get(r.store.Cuts(ctx))(t)
	if len(listed) != 1 || listed[0].Target != first.Target {
		t.Errorf("listed are %v, want %v only", listed, first)
	}
	c.crash()
}

// As long as the target is not the source as of one entry, no cut is made, and it is known
// why.
func TestNoCut(t *testing.T) {
	for _, tt := range []struct {
		want string
		set  func(d *dispatcher, h *fakeLink)
	}{
		{"", func(*dispatcher, *fakeLink) {}},
		{"not consistent", func(d *dispatcher, _ *fakeLink) { d.ended = false }},
		{"not consistent", func(_ *dispatcher, h *fakeLink) { h.gaps.Copying = true }},
		{"not consistent", func(_ *dispatcher, h *fakeLink) { h.gaps.CopiedUntil = oplog.NewOpTime(2001, 1, 1) }},
		{"copied again: db.a", func(_ *dispatcher, h *fakeLink) { h.gaps.LeftOut = []checkpoint.LeftOut{{NS: "db.a"}} }},
		{"index build", func(d *dispatcher, _ *fakeLink) { d.routes.kept["db.a"] = checkpoint.Position{} }},
		{"index build", func(d *dispatcher, _ *fakeLink) { d.backlog.queue = make([]work, 1) }},
		{"index build", func(d *dispatcher, _ *fakeLink) { d.backlog.building = &building{} }},
		{"ahead of others", func(d *dispatcher, _ *fakeLink) { d.furthest = oplog.NewOpTime(2000, 2, 1) }},
		{"prepared transaction", func(d *dispatcher, _ *fakeLink) { d.inDoubt = true }},
		{"not committed by a majority", func(d *dispatcher, _ *fakeLink) { d.cuts.unconfirmed.Store(true) }},
		{"being prepared", func(d *dispatcher, _ *fakeLink) { d.cuts.open.Store(false) }},
	} {
		a := fakeApplier(t, &nullTarget{}, 2, nil)
		d := newDispatcher(a)
		d.last = oplog.NewOpTime(2000, 1, 1)
		d.cuts.open.Store(true)
		if why := d.noCut(); why != "" {
			t.Fatal(why)
		}
		tt.set(d, a.link.(*fakeLink))
		if why := d.noCut(); (why == "") != (tt.want == "") || !strings.Contains(why, tt.want) {
			t.Errorf("%q, want %q", why, tt.want)
		}
	}
}

// Where lanes were apart at the start, the target is not the source as of any entry until
// the log has passed all of them.
func TestNoCutWhileLanesAreApart(t *testing.T) {
	r := newRig(t, 2, mongosim.Options{Members: 1, SnapshotHistory: 5 * time.Minute})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 30)
	batches := l.batches()
	// A crash leaves one lane ahead of the checkpoint, which does not move here.
	c := r.cutter(t, nil)
	for _, b := range batches {
		c.in <- b
	}
	c.reaches(l.optime())
	c.crash()
	c = r.cutter(t, nil)
	c.in <- batches[0]
	c.ask()
	for begun := time.Now(); !strings.Contains(c.Stats().NoCut, "ahead of others"); {
		if time.Since(begun) > time.Minute || len(c.told) > 0 {
			t.Fatalf("no cut for %q, %d cuts", c.Stats().NoCut, len(c.told))
		}
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
	for _, b := range l.sourceLog.after(batches[0].Last) {
		c.in <- b
	}
	if made := c.made(); made.Source != l.optime() {
		t.Errorf("a cut at %s, want %s", made.Source, l.optime())
	}
	c.drain()
}
