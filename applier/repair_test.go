package applier

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// repairer is a cutter that repairs documents from the data of a log.
type repairer struct {
	*cutter
	groups chan *Repair
	log    *cutLog
}

func (r *rig) repairer(t *testing.T, l *cutLog, set func(*Config)) *repairer {
	t.Helper()
	groups := make(chan *Repair)
	return &repairer{groups: groups, log: l, cutter: r.cutter(t, func(cfg *Config) {
		cfg.Repairs, cfg.ReportDivergence = groups, true
		if set != nil {
			set(cfg)
		}
	})}
}

// repairRig returns a rig with two lanes, which has applied the beginning of a log.
func repairRig(t *testing.T) (*rig, *cutLog, *repairer) {
	t.Helper()
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 0)
	c := r.repairer(t, l, nil)
	c.send(l.sourceLog, start)
	c.reaches(l.optime())
	return r, l, c
}

// docs returns the data of a collection after an entry, in a random order.
func (l *cutLog) docs(t fataler, ns oplog.Namespace, at bson.Timestamp) (docs []bson.Raw) {
	t.Helper()
	for key, text := range l.at(oplog.OpTime{TS: at, Term: 1}) {
		if strings.HasPrefix(key, string(ns)+" ") {
			var doc bson.Raw
			must.Succeed(t, bson.UnmarshalExtJSON([]byte(text), true, &doc))
			docs = append(docs, doc)
		}
	}
	return docs
}

func idsOf(values ...any) (list []bson.RawValue) {
	for _, v := range values {
		typ, data, err := bson.MarshalValue(v)
		if err != nil {
			panic("a test's _id cannot be marshalled: " + err.Error())
		}
		list = append(list, bson.RawValue{Type: typ, Value: data})
	}
	return list
}

// repair hands a group to the applier.
func (c *repairer) repair(ns oplog.Namespace, list []bson.RawValue) <-chan Repaired {
	c.t.Helper()
	done := make(chan Repaired, 1)
	r := &Repair{NS: ns, IDs: list, Done: func(out Repaired) { done <- out }}
	r.After = c.link.State().Applied.TS
	r.Read = func(_ context.Context, at bson.Timestamp) ([]bson.Raw, error) {
		return slices.DeleteFunc(c.log.docs(c.t, ns, at), func(doc bson.Raw) bool {
			return !slices.ContainsFunc(list, doc.Lookup("_id").Equal)
		}), nil
	}
	c.hand(r)
	return done
}

func (c *repairer) hand(r *Repair) {
	c.t.Helper()
	select {
	case c.groups <- r:
	case err := <-c.done:
		c.t.Fatalf("the applier has ended: %v", err)
	case <-time.After(time.Minute):
		c.t.Fatalf("the group is not taken: %+v", c.Stats())
	}
}

func (c *repairer) became(done <-chan Repaired) Repaired {
	c.t.Helper()
	select {
	case out := <-done:
		return out
	case <-time.After(time.Minute):
		c.t.Fatalf("no result: %+v", c.Stats())
		return Repaired{}
	}
}

// ended returns the error of the attempt.
func (c *repairer) ended() error {
	c.t.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(time.Minute):
		c.t.Fatalf("the attempt goes on: %+v", c.Stats())
		return nil
	}
}

// spoil damages some documents of a collection on the target.
func (g *simTarget) spoil(t fataler, rnd *rand.Rand, ns oplog.Namespace) {
	t.Helper()
	try := func(cmd bson.D) {
		for tries := 0; ; tries++ {
			_, err := g.send(context.Background(), mongo.Command{DB: ns.DB(), Body: must.Get(bson.Marshal(cmd))(t)})
			if err == nil {
				return
			}
			if tries == 1000 {
				t.Fatalf("damage %s: %v", ns, err)
			}
		}
	}
	for id := range 8 {
		filter := bson.D{{Key: "_id", Value: id}}
		switch rnd.IntN(4) {
		case 0:
			try(bson.D{{Key: "delete", Value: ns.Collection()}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: 1}}}}})
		case 1:
			change := bson.D{{Key: "$set", Value: bson.D{{Key: "junk", Value: true}}}, {Key: "$inc", Value: bson.D{{Key: "v", Value: int64(1)}}}}
			try(bson.D{{Key: "update", Value: ns.Collection()}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: filter}, {Key: "u", Value: change}}}}})
		}
	}
	extra := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 100}}}, {Key: "u", Value: bson.D{{Key: "junk", Value: true}}}, {Key: "upsert", Value: true}}
	try(bson.D{{Key: "update", Value: ns.Collection()}, {Key: "updates", Value: bson.A{extra}}})
}

// A repaired document is as the log had made it at that entry: at the time of the commit, and at
// each cut that follows, whatever the lanes apply meanwhile.
func TestRepairIsPrefix(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 4, mongosim.Options{Members: 1, SnapshotHistory: 5 * time.Minute})
			r.target.prepareCuts(t)
			l := newCutLog(t, seed, 160)
			c := r.repairer(t, l, func(cfg *Config) { cfg.FlushDocs, cfg.CoalesceWindow, cfg.Relaxed = 3, 3, seed == 2 })
			rnd := rand.New(rand.NewPCG(seed, 3))
			batches := l.batches()
			c.in <- batches[0]
			written, last := Repaired{}, bson.Timestamp{}
			for next := 1; next < len(batches); {
				var done []<-chan Repaired
				for _, ns := range cutNamespaces {
					r.target.spoil(t, rnd, ns)
				}
				for i, ns := range cutNamespaces {
					for range rnd.IntN(3) {
						if next < len(batches) {
							c.in <- batches[next]
							next++
						}
					}
					done = append(done, c.repair(ns, idsOf(0, 1, 2, 3, 4, 5, 6, 7, 100)))
					out := c.became(done[i])
					if out.State != RepairDone {
						t.Fatalf("%s: %+v", ns, out)
					}
					want := maps.Clone(l.at(out.Source))
					maps.DeleteFunc(want, func(key, _ string) bool { return !strings.HasPrefix(key, string(ns)+" ") })
					if diff := cmp.Diff(want, r.target.asOf(t, out.Target, ns)); diff != "" {
						t.Errorf("%s, repaired at %s (-want +got):\n%s", ns, out.Source, diff)
					}
					last = out.Target
					written.Rewritten += out.Rewritten
					written.Inserted += out.Inserted
					written.Deleted += out.Deleted
				}
				if next < len(batches) {
					c.in <- batches[next]
					next++
				}
				// A cut that could not be made at once may be made twice: the first one may be too early.
				c.ask()
				made := c.made()
				for oplog.CompareTimestamps(made.Target, last) < 0 {
					made = c.made()
				}
				if diff := cmp.Diff(l.at(made.Source), r.target.asOf(t, made.Target, cutNamespaces...)); diff != "" {
					t.Errorf("the cut at %s (-want +got):\n%s", made.Source, diff)
				}
			}
			c.drain()
			if written.Rewritten == 0 || written.Inserted == 0 || written.Deleted == 0 {
				t.Errorf("written: %+v", written)
			}
		})
	}
}

// A repair waits for a flush in flight: it looks at no document before that is acknowledged.
func TestRepairWaitsForFlushes(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 0)
	c := r.repairer(t, l, nil)
	h := r.holdFlushes(func(cmd mongo.Command) bool { return cmd.DB == "db" && simcaller.Name(cmd) == "find" })
	c.send(l.sourceLog, start)
	done := c.repair("db.a", idsOf(1))
	h.releaseOnceAwaited(t, c.Stats)
	if out := c.became(done); out.State != RepairDone || out.Equal != 1 {
		t.Errorf("%+v", out)
	}
	c.drain()
}

// If it is not known whether a repair is committed the attempt ends: it may be committed later, when
// lanes have gone on.
func TestRepairUnknown(t *testing.T) {
	r, _, c := repairRig(t)
	r.target.spoil(t, rand.New(rand.NewPCG(1, 1)), "db.a")
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			return &mongo.LostError{Err: errors.New("gone")}, true
		}
		return nil, false
	})
	done := c.repair("db.a", idsOf(0, 1, 2, 3, 4, 5, 6, 7, 100))
	err := c.ended()
	if _, lost := errors.AsType[*mongo.LostError](err); !lost {
		t.Errorf("ends with %v", err)
	}
	if out := c.became(done); out.State != RepairLater {
		t.Errorf("%+v", out)
	}
}

// A repair that the target refuses, or that comes at the wrong time, writes nothing and does not
// end the attempt.
func TestRepairRefused(t *testing.T) {
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{
		{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}, {Key: "sparse", Value: true},
	}}}})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "a"}, {Key: "pipeline", Value: bson.A{}}})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}}})
	l := newCutLog(t, 1, 0)
	c := r.repairer(t, l, nil)
	c.send(l.sourceLog, start)
	c.reaches(l.optime())
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{
		bson.D{{Key: "_id", Value: "x"}, {Key: "u", Value: 1}}, bson.D{{Key: "_id", Value: "y"}, {Key: "u", Value: 2}},
	}}})
	before := texts(r.target.documents(t, "db.a"))
	u := func(id string, v int) bson.Raw {
		return must.Get(bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "u", Value: v}}))(t)
	}
	large := must.Get(bson.Marshal(bson.D{{Key: "_id", Value: 1}, {Key: "pad", Value: strings.Repeat("x", 9<<20)}}))(t)
	for _, tt := range []struct {
		name  string
		ns    oplog.Namespace
		ids   []bson.RawValue
		docs  []bson.Raw
		err   error
		after bson.Timestamp
		want  RepairState
		why   string
	}{
		{name: "duplicate", ns: "db.a", ids: idsOf("z"), docs: []bson.Raw{u("z", 1)}, want: RepairRefused, why: "dup key"},
		{name: "duplicate of one", ns: "db.a", ids: idsOf("z", "q"), docs: []bson.Raw{u("z", 1), u("q", 7)}, want: RepairSmaller},
		{name: "large", ns: "db.a", ids: idsOf(1, 2), docs: []bson.Raw{large}, want: RepairSmaller},
		{name: "large reply", ns: "db.a", ids: idsOf(1), err: ErrRepairSize, want: RepairSmaller},
		{name: "unreadable", ns: "db.a", ids: idsOf(1), err: errors.New("away"), want: RepairLater, why: "away"},
		{name: "capped", ns: "db.capped", ids: idsOf(1), want: RepairImpossible, why: "replicator resync"},
		{name: "buckets", ns: "db.system.buckets.series", ids: idsOf(1), want: RepairImpossible, why: "replicator resync --namespace db.series"},
		{name: "view", ns: "db.view", ids: idsOf(1), want: RepairImpossible, why: "not a collection"},
		{name: "missing", ns: "db.none", ids: idsOf(1), want: RepairImpossible, why: "does not have"},
		{name: "not mirrored", ns: "out.a", ids: idsOf(1), want: RepairImpossible, why: "not mirror"},
	} {
		done := make(chan Repaired, 1)
		c.hand(&Repair{
			NS: tt.ns, IDs: tt.ids, After: l.optime().TS, Done: func(out Repaired) { done <- out },
			Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) { return tt.docs, tt.err },
		})
		if out := c.became(done); out.State != tt.want || !strings.Contains(out.Why, tt.why) || out.Inserted+out.Rewritten+out.Deleted > 0 {
			t.Errorf("%s: %+v", tt.name, out)
		}
	}
	if diff := cmp.Diff(before, texts(r.target.documents(t, "db.a"))); diff != "" {
		t.Error(diff)
	}
	// Unique keys that two documents have exchanged.
	done := make(chan Repaired, 1)
	c.hand(&Repair{
		NS: "db.a", IDs: idsOf("x", "y"), After: l.optime().TS, Done: func(out Repaired) { done <- out },
		Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) {
			return []bson.Raw{u("x", 2), u("y", 1)}, nil
		},
	})
	if out := c.became(done); out.State != RepairDone || out.Rewritten != 2 {
		t.Errorf("exchanged: %+v", out)
	}
	c.drain()
}

// Values that a server takes for equal are rewritten, too, and what a server would change is not.
func TestRepairBytes(t *testing.T) {
	r, l, c := repairRig(t)
	var want []bson.Raw
	for _, fields := range []bson.D{
		{{Key: "_id", Value: 2}, {Key: "v", Value: 1}},
		{{Key: "_id", Value: int64(3)}, {Key: "v", Value: 0}},
		{{Key: "_id", Value: 4}, {Key: "v", Value: int64(0)}},
		{{Key: "_id", Value: 5}, {Key: "v", Value: 0}, {Key: "v", Value: 1}},
		{{Key: "_id", Value: 6}, {Key: "t", Value: bson.Timestamp{}}},
		{{Key: "_id", Value: 7}, {Key: "$set", Value: 1}, {Key: "b.c", Value: 2}},
		{{Key: "_id", Value: bson.D{{Key: "b", Value: 5}}}},
	} {
		want = append(want, must.Get(bson.Marshal(fields))(t))
	}
	done := make(chan Repaired, 1)
	list := idsOf(2, 3, 4, 5, 6, 7, bson.D{{Key: "b", Value: 5}}, "none")
	c.hand(&Repair{
		NS: "db.a", IDs: list, After: l.optime().TS, Done: func(out Repaired) { done <- out },
		Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) { return want, nil },
	})
	if out := c.became(done); out.State != RepairDone || out.Rewritten != 6 || out.Inserted != 1 {
		t.Errorf("%+v", out)
	}
	got := r.target.documents(t, "db.a")
	for _, doc := range want {
		if !slices.ContainsFunc(got, func(g bson.Raw) bool { return bytes.Equal(g, doc) }) {
			t.Errorf("the target lacks %s; it has %v", doc, texts(got))
		}
	}
	if len(got) != 9 {
		t.Errorf("%d documents", len(got))
	}
	c.drain()
}

// A group waits until the log has come to where its collection was looked for, and is given back if
// there is a command of the log between that and where it is written, or at the end of the attempt.
func TestRepairAfter(t *testing.T) {
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	l := newCutLog(t, 1, 0)
	c := r.repairer(t, l, nil)
	first := l.optime()
	l.note(insertOp("db.b", doc(50, 1)))
	l.add(insertOp("db.b", doc(50, 1)))
	l.end()
	l.note(insertOp("db.b", doc(51, 1)))
	l.alone(commandOp("db", bson.D{{Key: "create", Value: "other"}}))
	last := l.optime()
	var at oplog.OpTime
	group := func(after bson.Timestamp) <-chan Repaired {
		done := make(chan Repaired, 1)
		c.hand(&Repair{NS: "db.a", IDs: idsOf(1), After: after, Done: func(out Repaired) { done <- out }, Read: func(_ context.Context, ts bson.Timestamp) ([]bson.Raw, error) {
			at = oplog.OpTime{TS: ts, Term: 1}
			return l.docs(t, "db.a", ts)[:0], nil
		}})
		return done
	}
	early := c.became(group(bson.Timestamp{T: start.TS.T - 1})) // before the attempt
	if early.State != RepairLater || !strings.Contains(early.Why, "catalog") {
		t.Errorf("before the attempt: %+v", early)
	}
	batches := l.batches()
	done := group(batches[1].Last.TS)
	c.in <- batches[0]
	c.reaches(first)
	if len(done) > 0 {
		t.Fatalf("%+v", <-done)
	}
	c.in <- batches[1]
	if out := c.became(done); out.State != RepairDone || at != batches[1].Last || out.Source != at || out.Deleted != 1 {
		t.Errorf("at %s: %+v", at, out)
	}
	c.in <- batches[2]
	c.reaches(last)
	if out := c.became(group(batches[1].Last.TS)); out.State != RepairLater || !strings.Contains(out.Why, "catalog") {
		t.Errorf("after a command: %+v", out)
	}
	if out := c.became(group(last.TS)); out.State != RepairDone {
		t.Errorf("after that: %+v", out)
	}
	done = group(bson.Timestamp{T: last.TS.T + 1})
	c.drain()
	if out := c.became(done); out.State != RepairLater {
		t.Errorf("at the end: %+v", out)
	}
}
