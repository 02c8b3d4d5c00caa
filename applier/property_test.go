package applier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// model is the expected data according to the log: all versions of each document.
type model struct {
	*sourceLog
	db string
	// versions are by namespace and _id, in order.
	versions map[string][]version
	live     map[string]map[int]bool
	capped   []int // the _ids of db.cap, in order
	most     int   // how many documents db.cap can have
	v        int
	// builds: the log has index builds. renews: its commands make collections anew, or replace them.
	builds, renews bool
}

// modelled are the collections of a model, without the capped one. The t… have few
// operations.
var modelled = []string{"a", "b", "o", "system.js", "t0", "t1", "t2", "t3"}

type version struct {
	entry int // the entry that made it
	v     int // 0 where there is no document
}

func key(ns string, id int) string { return fmt.Sprintf("%s/%d", ns, id) }

// op draws an operation that can follow, and records its effect.
func (m *model) op(t *rapid.T) bson.D {
	coll := rapid.SampledFrom([]string{"a", "a", "b", "o", "cap", "system.js", "t0", "t1", "t2", "t3"}).Draw(t, "collection")
	ns := m.db + "." + coll
	m.v++
	if coll == "cap" {
		id := len(m.capped)
		if id > 0 && rapid.IntRange(0, 5).Draw(t, "change") == 0 {
			id = rapid.IntRange(max(0, id-m.most), id-1).Draw(t, "id")
			m.note(ns, id, m.v)
			return setOp(ns, id, m.v)
		}
		m.capped = append(m.capped, id)
		m.note(ns, id, m.v)
		return insertOp(ns, doc(id, m.v))
	}
	id := rapid.IntRange(0, 5).Draw(t, "id")
	if !m.live[ns][id] {
		m.live[ns][id] = true
		m.note(ns, id, m.v)
		return insertOp(ns, doc(id, m.v))
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		m.live[ns][id] = false
		m.note(ns, id, 0)
		return deleteOp(ns, id)
	case 1: // a replacement
		m.note(ns, id, m.v)
		return bson.D{
			{Key: "op", Value: "u"},
			{Key: "ns", Value: ns},
			{Key: "o", Value: doc(id, m.v)},
			{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}},
		}
	default:
		m.note(ns, id, m.v)
		return setOp(ns, id, m.v)
	}
}

// fill inserts documents into a collection.
func (m *model) fill(coll string, docs int) {
	ns := m.db + "." + coll
	for id := range docs {
		m.v++
		m.live[ns][id] = true
		m.note(ns, id, m.v)
		m.add(insertOp(ns, doc(id, m.v)))
	}
}

// updateMany logs the same change of all documents of a collection.
func (m *model) updateMany(coll string) {
	ns := m.db + "." + coll
	m.v++
	for _, id := range slices.Sorted(maps.Keys(m.live[ns])) {
		if m.live[ns][id] {
			m.note(ns, id, m.v)
			m.add(setOp(ns, id, m.v))
		}
	}
}

// deleteMany logs the deletes of all documents of a collection but for a few.
func (m *model) deleteMany(coll string) {
	ns := m.db + "." + coll
	for _, id := range slices.Sorted(maps.Keys(m.live[ns])) {
		if m.live[ns][id] && id%7 != m.v%7 {
			m.live[ns][id] = false
			m.note(ns, id, 0)
			m.add(deleteOp(ns, id))
		}
	}
}

func (m *model) note(ns string, id, v int) {
	k := key(ns, id)
	m.versions[k] = append(m.versions[k], version{len(m.entries), v})
}

// drawModel draws a log: with index builds, with commands that renew collections, and, if it may be wide, often with
// many documents in two collections.
func drawModel(t *rapid.T, db string, most int, builds, renews, wide bool) *model {
	m := &model{most: most, builds: builds, renews: renews, sourceLog: newLog(t), db: db, versions: map[string][]version{}, live: map[string]map[int]bool{}}
	for _, c := range modelled {
		m.live[db+"."+c] = map[int]bool{}
	}
	if wide && rapid.IntRange(0, 2).Draw(t, "fill") > 0 {
		m.fill("a", 24)
		m.fill("b", 24)
	}
	for range rapid.IntRange(5, 40).Draw(t, "entries") {
		switch rapid.IntRange(0, 11).Draw(t, "entry") {
		case 8, 9:
			m.build(t)
		case 0, 1:
			var ops []bson.D
			for range rapid.IntRange(1, 5).Draw(t, "ops") {
				ops = append(ops, m.op(t))
			}
			m.add(m.transactionOp(ops...))
		case 2:
			m.add(groupOp(m.op(t), m.op(t)))
		case 3, 7:
			m.end()
			m.updateMany(rapid.SampledFrom([]string{"a", "b", "system.js"}).Draw(t, "collection"))
		case 4:
			m.command(t)
		case 5, 6:
			m.end()
			m.add(m.op(t))
		default:
			m.add(m.op(t))
		}
	}
	if wide && rapid.Bool().Draw(t, "deletes") {
		m.end()
		m.deleteMany("a")
		m.deleteMany("b")
	}
	m.add(bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
	return m
}

// build logs the commit of an index build.
func (m *model) build(t *rapid.T) {
	if !m.builds {
		m.add(m.op(t))
		return
	}
	coll := rapid.SampledFrom([]string{"a", "a", "b", "o", "system.js"}).Draw(t, "built")
	m.alone(commandOp(m.db, bson.D{
		{Key: "commitIndexBuild", Value: coll},
		{Key: "indexBuildUUID", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
		{Key: "indexes", Value: bson.A{bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x"}}}},
	}))
}

// check reports an error unless each document of the target is at or after its version at
// an optime.
func (m *model) check(t *rapid.T, target *simTarget, at oplog.OpTime, final bool) {
	entry := int(at.TS.T) - int(start.TS.T) - 1
	have := map[string]int{}
	for _, c := range append(slices.Clone(modelled), "cap") {
		ns := m.db + "." + c
		order := []int{}
		for _, d := range target.documents(t, oplog.Namespace(ns)) {
			id, _ := d.Lookup("_id").AsInt64OK()
			v, _ := d.Lookup("v").AsInt64OK()
			have[key(ns, int(id))] = int(v)
			order = append(order, int(id))
		}
		if c == "cap" && (len(order) > len(m.capped) || !slices.Equal(order, m.capped[:len(order)])) {
			t.Fatalf("order of the capped collection: %v, want it to begin like %v", order, m.capped)
		}
	}
	for k, versions := range m.versions {
		least := -1
		for i, v := range versions {
			if v.entry <= entry {
				least = i
			}
		}
		if _, isDoc := have[k]; !isDoc && versions[0].v == 1 && k[len(m.db)] == '/' {
			continue // a collection
		}
		if final && least != len(versions)-1 {
			t.Fatalf("the watermark is %s at the end", at)
		}
		ok := least < 0 && have[k] == 0
		for i := max(least, 0); i < len(versions); i++ {
			ok = ok || have[k] == versions[i].v
		}
		if !ok {
			t.Fatalf("at %s (entry %d): %s is at version %d; it had %v", at, entry, k, have[k], versions)
		}
	}
	for k := range have {
		if m.versions[k] == nil {
			t.Fatalf("%s is in the target and not in the log", k)
		}
	}
}

// mishap is a fault injected into the target's commands.
type mishap struct {
	at   int64 // the number of the command
	kind string
}

var errCrash = errors.New("crash")

// hurt injects mishaps. late sends the delayed commands.
func hurt(target *simTarget, mishaps []mishap, cancel context.CancelCauseFunc) (late func()) {
	var n atomic.Int64
	var dead atomic.Bool
	var kept []mongo.Command
	target.intercept(func(cmd mongo.Command) (error, bool) {
		if dead.Load() {
			return &mongo.LostError{Err: errCrash}, false
		}
		i := n.Add(1)
		for _, m := range mishaps {
			if m.at != i {
				continue
			}
			switch m.kind {
			case "conflict":
				switch simcaller.Name(cmd) {
				case "insert", "update", "delete":
					if cmd.Sequence != "" || cmd.Body.Lookup("autocommit").Type != 0 {
						e := servererr.New(servererr.WriteConflict, "conflict")
						if cmd.Body.Lookup("autocommit").Type != 0 {
							e = e.WithLabels(labelTransient)
						}
						return e, false
					}
				}
			case "lost before":
				dead.Store(true)
				return &mongo.LostError{Err: errCrash}, false
			case "lost after":
				dead.Store(true)
				return &mongo.LostError{Err: errCrash}, true
			case "once lost after":
				return &mongo.LostError{Err: errCrash}, true
			case "late":
				dead.Store(true)
				kept = append(kept, cmd)
				return &mongo.LostError{Err: errCrash}, false
			case "cancel":
				cancel(errCrash)
			}
		}
		return nil, false
	})
	return func() {
		for _, cmd := range kept {
			_, _ = target.send(context.Background(), cmd)
		}
	}
}

// crashAfter ends an attempt after n more commands to the target.
func crashAfter(target *simTarget, n int64, cancel context.CancelCauseFunc) {
	if n == 0 {
		cancel(errCrash)
		return
	}
	target.mu.Lock()
	defer target.mu.Unlock()
	before := target.before
	var sent atomic.Int64
	target.before = func(cmd mongo.Command) (error, bool) {
		if sent.Add(1) == n {
			cancel(errCrash)
		}
		return before(cmd)
	}
}

// drawDB draws the name of a database, and drops it. The name influences the lanes of
// documents, so it must be the same when a failed check is repeated.
func (g *simTarget) drawDB(t *rapid.T) string {
	db := fmt.Sprint("db", rapid.IntRange(0, 999).Draw(t, "db"))
	g.run(t, db, bson.D{{Key: "dropDatabase", Value: 1}})
	return db
}

// TestProperty: for any log, crash and restart, the target is the log's prefix at the
// watermark, or a later one, and nothing is applied twice with effect.
func TestProperty(t *testing.T) {
	acted, links := checkProperty(t, mongosim.Options{Members: 1}, false)
	acted.check(t, links)
}

// TestPropertyCommands: the same, where collections are made anew and replaced, capped or not. Clients can delete from capped
// ones.
func TestPropertyCommands(t *testing.T) {
	checkProperty(t, mongosim.Options{Members: 1, Dialect: "7.0"}, true)
}

func checkProperty(t *testing.T, opts mongosim.Options, renews bool) (acted acted, links int) {
	target := &simTarget{set: mongosim.StartTest(t, opts)}
	rapid.Check(t, func(t *rapid.T) {
		links++
		target.intercept(nil)
		link := fmt.Sprintf("link%d", links)
		r := rigOn(t, target, link, rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "writers"))
		r.db = target.drawDB(t)
		for _, c := range modelled {
			target.run(t, r.db, bson.D{{Key: "create", Value: c}})
		}
		target.run(t, r.db, bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		target.run(t, r.db, bson.D{{Key: "createIndexes", Value: "o"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
		}}})
		m := drawModel(t, r.db, 1000, true, renews, true)
		kinds := []string{"conflict", "lost before", "lost after", "once lost after", "late", "cancel"}
		late := func() {}
		for attempts := 0; ; attempts++ {
			if attempts > 50 {
				t.Fatalf("it does not get on")
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			ctx, stop := context.WithTimeout(ctx, 2*time.Minute)
			target.intercept(nil)
			a, err := r.begin(ctx, func(c *Config) {
				c.Commands = replacing{c.Commands.(*commands)}
				c.Relaxed = rapid.Bool().Draw(t, "relaxed")
				c.Plan.MinMass = rapid.SampledFrom([]int{0, 2, 2, 3}).Draw(t, "mass")
				c.ShareOps, c.ShareRest = rapid.SampledFrom([]int{0, 3, 10, 20}).Draw(t, "shares"), 1
				c.Plan.Coalesce = rapid.Bool().Draw(t, "coalesce")
				c.FlushDocs, c.CoalesceWindow, c.WindowBytes = 30, 40, 20_000
				if rapid.Bool().Draw(t, "small") {
					c.FlushDocs = rapid.IntRange(1, 8).Draw(t, "docs")
					c.CoalesceWindow = rapid.IntRange(1, 20).Draw(t, "window")
					c.WindowBytes = int64(rapid.IntRange(1, 20_000).Draw(t, "bytes"))
				}
				c.RetryFor = 10 * time.Second
				c.BuildWait = rapid.SampledFrom([]time.Duration{1, time.Minute}).Draw(t, "build wait")
				c.KeptBytes = int64(rapid.SampledFrom([]int{1, 2_000, 1 << 20}).Draw(t, "kept bytes"))
				(&jerky{every: rapid.IntRange(-6, 12).Draw(t, "held after")}).on(c)
			})
			must.Succeed(t, err)
			a.commands.building = time.Duration(rapid.IntRange(0, 20).Draw(t, "building")) * time.Millisecond
			late()
			var mishaps []mishap
			if attempts < 4 {
				for range rapid.IntRange(0, 3).Draw(t, "mishaps") {
					mishaps = append(mishaps, mishap{
						at:   int64(10*rapid.IntRange(0, 11).Draw(t, "tens") + rapid.IntRange(1, 10).Draw(t, "at")), // spread
						kind: rapid.SampledFrom(kinds).Draw(t, "mishap"),
					})
				}
			}
			if attempts < 4 && rapid.Bool().Draw(t, "crash during a build") {
				soon := int64(rapid.IntRange(0, 12).Draw(t, "after"))
				a.commands.during = func() { crashAfter(target, soon, cancel) }
			}
			state := a.link.State()
			late = hurt(target, mishaps, cancel)
			err = a.run(ctx, m.after(state.Applied), rapid.IntRange(0, 3).Draw(t, "advance"))
			stop()
			cancel(nil)
			target.intercept(nil)
			acted.in(links, a)
			checkHolds(t, a)
			at := state.Applied
			if len(a.seen) > 0 {
				at = a.seen[len(a.seen)-1].Applied
			}
			if err == nil {
				if at != m.optime() {
					t.Fatalf("drained at %s, want %s", at, m.optime())
				}
				m.check(t, target, at, true)
				return
			}
			if !isMishap(err) {
				t.Fatalf("attempt %d: %v", attempts, err)
			}
			m.check(t, target, at, false)
		}
	})
	return acted, links
}

// acted are the runs of a property in which equal updates were sent together, in which deletes
// were, and in which collections got other lanes.
type acted struct{ listed, deletes, rerouted map[int]bool }

// in records what an attempt of a run has done.
func (w *acted) in(run int, a *attempt) {
	if w.listed == nil {
		w.listed, w.deletes, w.rerouted = map[int]bool{}, map[int]bool{}, map[int]bool{}
	}
	if s := a.Stats(); s.Listed > 0 {
		w.listed[run] = true
	}
	if a.Stats().ListedDeletes > 0 {
		w.deletes[run] = true
	}
	if a.Stats().Reroutes > 0 {
		w.rerouted[run] = true
	}
}

// check reports an error if one of them happened in far fewer runs than is usual: a quarter
// to a third, a tenth, and a sixth.
func (w *acted) check(t *testing.T, runs int) {
	t.Helper()
	t.Logf("%d runs: updates together in %d, deletes in %d, other lanes in %d", runs, len(w.listed), len(w.deletes), len(w.rerouted))
	if !t.Failed() && (len(w.listed) < runs/10 || len(w.deletes) < runs/50 || len(w.rerouted) < runs/25) {
		t.Errorf("of %d runs %d sent updates together, %d deletes, and %d changed lanes", runs, len(w.listed), len(w.deletes), len(w.rerouted))
	}
}

func isMishap(err error) bool {
	_, lost := errors.AsType[*mongo.LostError](err)
	return lost || errors.Is(err, errCrash) || errors.Is(err, lease.ErrRewound) ||
		errors.Is(err, context.Canceled) || errors.Is(err, errAdvance)
}
