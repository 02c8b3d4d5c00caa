package clone

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Memory: 1, FlushDocs: -1})
	for _, want := range []string{"both clusters", "not negative", "the least is"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// TestSpecialDocuments are documents that a server would change, or refuse, if they
// were inserted or replaced in the usual way.
func TestSpecialDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run(t, w.source, "d", bson.D{{Key: "create", Value: "c"}})
	docs := []bson.Raw{
		must.Marshal(t, bson.D{{Key: "_id", Value: 1}, {Key: "zero", Value: bson.Timestamp{}}, {Key: "x", Value: 1}}),
		must.Marshal(t, bson.D{{Key: "_id", Value: 2}, {Key: "in", Value: bson.D{{Key: "zero", Value: bson.Timestamp{}}}}}),
		must.Marshal(t, bson.D{{Key: "_id", Value: 3}, {Key: "$x", Value: 1}, {Key: "a.b", Value: 2}}),
		must.Marshal(t, bson.D{{Key: "_id", Value: 4}}),
	}
	for _, d := range docs { // as a pipeline may write them
		doc := must.Get(inspect(d, false))(t)
		doc.replace = false
		cmd := mongo.Command{DB: "d", Body: writeBody("update", "d.c", true), Sequence: "updates", Docs: []bson.Raw{upsertOf(&doc)}}
		must.Succeed(t, wrote(must.Get(w.source.Call(t.Context(), cmd))(t), &command{Command: cmd}, "d.c"))
	}
	must.Succeed(t, difference(docs, read(t, w.source, "d.c"), true))
	coll := w.collection("d.c")
	// Some of them exist already, as do others.
	insertRaw(t, w.target, "d.c", must.Marshal(t, bson.D{{Key: "_id", Value: 3}}), must.Marshal(t, bson.D{{Key: "_id", Value: 1}}))
	w.whole(coll)
	if n := must.Get(w.ranges(t.Context()))(t)[0].Docs; n != 4 {
		t.Errorf("%d documents", n)
	}
}

func TestUniqueIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 10, 10)...)
	coll := w.collection("d.c")
	run(t, w.target, "d", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "pad", Value: 1}}}, {Key: "name", Value: "my_pad"}, {Key: "unique", Value: true}},
	}}})
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	err := w.copyAll(ctx, coll)
	if u, ok := errors.AsType[*UniqueError](err); !ok || u.Index != "my_pad" || !strings.Contains(err.Error(), "unique index my_pad has the key {") {
		t.Errorf("error %v", err)
	}
	if got := read(t, w.target, "d.c"); len(got) != 0 {
		t.Errorf("%d documents are there", len(got))
	}
}

// TestTargetRefuses checks the reactions to errors of the target.
func TestTargetRefuses(t *testing.T) {
	t.Parallel()
	transient := func(code servererr.Code) error {
		e := servererr.New(code, "no")
		e.Labels = []string{servererr.LabelTransient}
		return e
	}
	for title, c := range map[string]struct {
		command string
		err     func(n, docs int) error // of the n-th such command
		want    servererr.Code          // 0: it is copied
		stuck   bool
		steps   int64
	}{
		"conflict":          {"insert", func(n, _ int) error { return when(n < 4, transient(servererr.WriteConflict)) }, 0, false, 2},
		"conflict for ever": {"insert", func(int, int) error { return transient(servererr.WriteConflict) }, servererr.WriteConflict, true, 0},
		"commit conflict":   {"commitTransaction", func(n, _ int) error { return when(n < 2, transient(servererr.WriteConflict)) }, 0, false, 2},
		"commit unknown": {"commitTransaction", func(int, int) error {
			return &servererr.Error{Code: servererr.WriteConflict, Labels: []string{servererr.LabelUnknownCommit}}
		}, servererr.WriteConflict, false, 0},
		"too large":        {"insert", func(_, docs int) error { return when(docs > 15, servererr.New(servererr.TransactionTooLarge, "no")) }, 0, false, 8},
		"each too large":   {"insert", func(n, _ int) error { return when(n < 9, servererr.New(servererr.TransactionTooLarge, "no")) }, 0, false, 0},
		"another primary":  {"insert", func(int, int) error { return transient(servererr.NotWritablePrimary) }, servererr.NotWritablePrimary, false, 0},
		"unknown":          {"insert", func(int, int) error { return servererr.New(servererr.BadValue, "no") }, servererr.BadValue, false, 0},
		"new and passing":  {"insert", func(n, _ int) error { return when(n == 0, transient(99999)) }, 0, false, 2},
		"in the first one": {"update", func(n, _ int) error { return when(n == 0, transient(servererr.LockTimeout)) }, 0, false, 2},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := newWorldWith(t, "5.0", 1, mongosim.NoMoods("the steps are counted"))
			w.cfg.FlushDocs = 60
			if c.stuck {
				w.cfg.RetryFor = 100 * time.Millisecond
			}
			insertRaw(t, w.source, "d.c", numbered(t, 0, 100, 10)...)
			coll := w.collection("d.c")
			ctx := within(t)
			w.begin(ctx)
			w.plan(ctx, coll)
			n := -1
			w.target.intercept(func(cmd mongo.Command) (error, bool) {
				if _, inTxn := rawbson.Lookup(cmd.Body, "autocommit"); name(cmd) != c.command || !inTxn {
					return nil, false
				}
				n++
				return c.err(n, len(cmd.Docs)), false
			}, nil)
			err := w.copyAll(ctx, coll)
			w.target.intercept(nil, nil)
			if c.want == 0 {
				must.Succeed(t, err)
				w.check("d.c")
				if r := must.Get(w.ranges(ctx))(t)[0]; c.steps != 0 && r.Steps != c.steps {
					t.Errorf("%d steps, want %d", r.Steps, c.steps)
				}
				return
			}
			e, _ := errors.AsType[*servererr.Error](err)
			_, stuck := errors.AsType[*mongo.StuckError](err)
			if e == nil || e.Code != c.want || stuck != c.stuck {
				t.Errorf("error %v", err)
			}
		})
	}
}

func when(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// TestSourceRefuses checks the reactions to errors of a getMore.
func TestSourceRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code servererr.Code
		ends bool
	}{
		{servererr.CursorNotFound, false},
		{servererr.QueryPlanKilled, false},
		{servererr.Interrupted, false},
		{servererr.InterruptedDueToReplStateChange, true},
		{servererr.NotPrimaryOrSecondary, true},
		{servererr.BadValue, true},
		{servererr.KeyNotFound, false}, // of keys to sign with: no record was asked for
		{servererr.TemporarilyUnavailable, false},
	} {
		w := newWorld(t)
		w.batch, w.cfg.RetryFor = 10, 100*time.Millisecond
		insertRaw(t, w.source, "d.c", numbered(t, 0, 100, 10)...)
		coll := w.collection("d.c")
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		n := 0
		w.source.intercept(func(cmd mongo.Command) (error, bool) {
			if name(cmd) == "getMore" {
				n++
			}
			return when(n%3 == 2, servererr.New(c.code, "no")), false
		}, nil)
		err := w.copyAll(ctx, coll)
		e, _ := errors.AsType[*servererr.Error](err)
		switch {
		case c.ends && (e == nil || e.Code != c.code):
			t.Errorf("%v: error %v", c.code, err)
		case !c.ends && c.code == servererr.CursorNotFound && e == nil:
			t.Errorf("%v for ever: copied", c.code)
		}
		if c.ends {
			continue
		}
		// A single error is retried.
		n, w.cfg.RetryFor = 0, patience
		w.source.intercept(func(cmd mongo.Command) (error, bool) {
			if name(cmd) == "getMore" {
				n++
				return when(n%3 == 2, servererr.New(c.code, "no")), false
			}
			return nil, false
		}, nil)
		must.Succeed(t, w.copyAll(ctx, coll))
		w.source.intercept(nil, nil)
		w.check("d.c")
	}
}

// TestFenced: an attempt that has been fenced, and does not know it, writes nothing.
func TestFenced(t *testing.T) {
	t.Parallel()
	for _, ns := range []oplog.Namespace{"d.c", "d.system.js"} {
		w := newWorld(t)
		insertRaw(t, w.source, ns, numbered(t, 0, 100, 10)...)
		coll := w.collection(ns)
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		old := w.link
		w.begin(ctx)
		ranges := must.Get(w.ranges(ctx))(t)
		_, err := w.cloner().Copy(ctx, old.Lane(0), coll, ns, ranges[0])
		e, _ := errors.AsType[*servererr.Error](err)
		if !errors.Is(err, lease.ErrFenced) && (e == nil || e.Code != servererr.TransactionTooOld) {
			t.Errorf("%s: error %v", ns, err)
		}
		if got := read(t, w.target, ns); len(got) != 0 {
			t.Errorf("%s: %d documents are there", ns, len(got))
		}
	}
}

// TestFencedAtCommit: the writes of an attempt are discarded with the transaction that
// moves the range, if another one takes over before that is committed.
func TestFencedAtCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 20, 10)...)
	coll := w.collection("d.c")
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	old := w.link
	ranges := must.Get(w.ranges(ctx))(t)
	taken := false
	w.target.intercept(func(cmd mongo.Command) (error, bool) {
		if elem, err := cmd.Body.IndexErr(0); err == nil && elem.Key() == "commitTransaction" {
			w.target.intercept(nil, nil)
			taken = true
			w.begin(ctx)
		}
		return nil, false
	}, nil)
	if _, err := w.cloner().Copy(ctx, old.Lane(0), coll, "d.c", ranges[0]); err == nil || !taken {
		t.Errorf("taken over %t: %v", taken, err)
	}
	if got := read(t, w.target, "d.c"); len(got) != 0 {
		t.Errorf("%d documents are there", len(got))
	}
}

// TestHugeDocuments are as large as documents can be.
func TestHugeDocuments(t *testing.T) {
	race.Skip(t, "it takes several times its memory")
	if testing.Short() {
		t.Skip("it takes much memory: not with -short")
	}
	t.Parallel()
	w := newWorld(t)
	empty := len(numbered(t, 0, 1, 0)[0])
	docs := slices.Concat(numbered(t, 0, 3, 16<<20-empty), numbered(t, 10, 20, 10), numbered(t, 40, 1, 16<<20-empty), numbered(t, 50, 2, 9<<20))
	for _, d := range docs {
		insertRaw(t, w.source, "d.c", d)
	}
	coll := w.collection("d.c")
	// And all of it once more, as replacements.
	w.whole(coll)
	ctx := within(t)
	w.renew(ctx)
	w.plan(ctx, coll)
	must.Succeed(t, w.copyAll(ctx, coll))
	w.check("d.c")
}

// TestMemory: however many ranges are read while the target does not answer, the
// documents read stay within the limit, and all are copied in the end.
func TestMemory(t *testing.T) {
	race.Skip(t, "the race detector takes more memory than what is measured")
	t.Parallel()
	w := newWorld(t)
	w.cfg.Memory = 64 << 20
	ctx := within(t)
	w.begin(ctx)
	var colls []*progress.Collection
	var ranges []progress.Range
	for i := range 6 {
		ns := oplog.NewNamespace("d", "c"+string(rune('a'+i)))
		insertRaw(t, w.source, ns, numbered(t, 0, 50, 400<<10)...)
		coll := w.collection(ns)
		w.plan(ctx, coll)
		colls = append(colls, coll)
		ranges = append(ranges, must.Get(w.rangesOf(ctx, coll))(t)...)
	}
	c := w.cloner()
	all := func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(4)
		lanes := make(chan Lane, 4)
		for i := range 4 {
			lanes <- w.link.Lane(i)
		}
		for i, coll := range colls {
			g.Go(func() error {
				lane := <-lanes
				defer func() { lanes <- lane }()
				_, err := c.Copy(ctx, lane, coll, coll.NS, ranges[i])
				return err
			})
		}
		return g.Wait()
	}
	// The target does not answer until the source has not been asked for a while.
	var reading atomic.Int64
	frozen, cancel := context.WithCancelCause(ctx)
	w.source.intercept(func(cmd mongo.Command) (error, bool) {
		if name(cmd) != "killCursors" {
			reading.Add(1)
		}
		return nil, false
	}, nil)
	w.target.intercept(func(mongo.Command) (error, bool) { <-frozen.Done(); return errInjected, false }, nil)
	timer := time.AfterFunc(3*time.Second, func() { cancel(errInjected) })
	defer timer.Stop()
	if err := all(frozen); !errors.Is(err, errInjected) {
		t.Errorf("error %v", err)
	}
	w.source.intercept(nil, nil)
	w.target.intercept(nil, nil)
	// Each of four lanes needs a reply of 16 MiB, and another one.
	if n := reading.Load(); n < 2 || n > 3 {
		t.Errorf("%d commands were sent to the source", n)
	}
	if !c.memory.TryAcquire(w.cfg.Memory*3/4) || !c.sending.TryAcquire(w.cfg.Memory/4) {
		t.Fatal("not all of the memory came back")
	}
	c.memory.Release(w.cfg.Memory * 3 / 4)
	c.sending.Release(w.cfg.Memory / 4)
	w.begin(ctx)
	must.Succeed(t, all(ctx))
	for _, coll := range colls {
		w.check(coll.NS)
	}
}

// pacer counts.
type pacer struct {
	mu                 sync.Mutex
	waits, docs, bytes int
	took               map[Side]int
	longTime           int
}

func (p *pacer) Wait(_ context.Context, docs, bytes int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits++
	p.docs += docs
	p.bytes += bytes
	return nil
}

func (p *pacer) Took(side Side, d time.Duration, docs, _ int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d < 0 || d > math.MaxInt32*time.Second {
		p.longTime++
	}
	p.took[side] += docs
}

func TestPacer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := &pacer{took: map[Side]int{}}
	w.cfg.Pacer, w.cfg.FlushDocs = p, 30
	insertRaw(t, w.source, "d.c", numbered(t, 0, 100, 10)...)
	w.whole(w.collection("d.c"))
	if p.waits != 4 || p.docs != 100 || p.took[Source] != 100 || p.took[Target] != 100 || p.longTime != 0 {
		t.Errorf("%+v", p)
	}
}
