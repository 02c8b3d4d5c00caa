package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// guarded is a world whose target something else writes to.
type guarded struct {
	*world
	l *link
	// told is how many foreign writes there were.
	told int64
}

func newGuarded(t *testing.T, target mongosim.Options, sc scope.Config, cfg pipeline.Config) *guarded {
	t.Helper()
	target.Seed, target.Moods = 2, mongosim.NoMoods("each write is to be there once")
	g := &guarded{world: newWorld(t, mongosim.Options{Members: 1, Seed: 1, TTLInterval: -1}, target)}
	g.foreign.Store(true)
	g.start(sc, cfg)
	return g
}

// start starts the link and waits until it follows its source and watches its target.
func (g *guarded) start(sc scope.Config, cfg pipeline.Config) {
	g.t.Helper()
	cfg.Writers, cfg.RetryMax, cfg.Await = 4, time.Second, time.Second
	must.Succeed(g.t, g.world.start("a", cfg, sc))
	g.l = g.links["a"]
	must.Succeed(g.t, g.untilOf(g.l, "a link that watches", func() bool {
		s := g.l.p.Snapshot()
		return s.State == monitor.Steady && s.Guard.Watching
	}))
}

func (g *guarded) state() guard.State { return g.l.p.Snapshot().Guard.State }

// foreignWrite is a command to the target and the writes that have to be told, the oldest first.
type foreignWrite struct {
	db   string
	cmd  bson.D
	want []string
}

// session is the session of a client.
func session(n byte) bson.E {
	return bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: slices.Repeat([]byte{n}, 16)}}}}
}

func docs(ids ...int) bson.E {
	list := bson.A{}
	for _, id := range ids {
		list = append(list, bson.D{{Key: "_id", Value: id}})
	}
	return bson.E{Key: "documents", Value: list}
}

func only(id int) bson.E { return bson.E{Key: "q", Value: bson.D{{Key: "_id", Value: id}}} }

// foreignWrites are those of every kind: with and without sessions, retryable, in transactions,
// in bulk, and commands.
var foreignWrites = []foreignWrite{
	{"shop", bson.D{{Key: "insert", Value: "a"}, docs(1, 2, 3)}, []string{"insert shop.a 1", "insert shop.a 2", "insert shop.a 3"}},
	{"shop", bson.D{{Key: "insert", Value: "a"}, docs(4), {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 0}}}}, []string{"insert shop.a 4"}},
	{"shop", bson.D{{Key: "insert", Value: "a"}, docs(5), session(1), {Key: "txnNumber", Value: int64(7)}}, []string{"insert shop.a 5 in 01 7"}},
	{"shop", bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{
		bson.D{only(1), {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}},
	}}}, []string{"update shop.a 1"}},
	{"shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{only(2), {Key: "limit", Value: 1}}}}}, []string{"delete shop.a 2"}},
	{"shop", bson.D{{Key: "findAndModify", Value: "a"}, {Key: "query", Value: bson.D{{Key: "_id", Value: 3}}}, {Key: "remove", Value: true}, session(2), {Key: "txnNumber", Value: int64(1)}}, []string{"delete shop.a 3 in 02 1"}},
	{"shop", bson.D{{Key: "insert", Value: "a"}, docs(6, 7), session(3), {Key: "txnNumber", Value: int64(1)}, {Key: "autocommit", Value: false}, {Key: "startTransaction", Value: true}}, nil},
	{"admin", bson.D{{Key: "commitTransaction", Value: 1}, session(3), {Key: "txnNumber", Value: int64(1)}, {Key: "autocommit", Value: false}}, []string{"insert shop.a 6 in 03 1", "insert shop.a 7 in 03 1"}},
	{"shop", bson.D{{Key: "create", Value: "b"}}, []string{"create shop.b "}},
	{"shop", bson.D{{Key: "createIndexes", Value: "b"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}}}, []string{"createIndexes shop.b "}},
	{"shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}}}, []string{"startIndexBuild shop.a ", "commitIndexBuild shop.a "}},
	{"shop", bson.D{{Key: "collMod", Value: "b"}, {Key: "validationLevel", Value: "moderate"}}, []string{"collMod shop.b "}},
	{"shop", bson.D{{Key: "dropIndexes", Value: "b"}, {Key: "index", Value: "x_1"}}, []string{"dropIndexes shop.b "}},
	{"admin", bson.D{{Key: "renameCollection", Value: "shop.b"}, {Key: "to", Value: "shop.c"}}, []string{"renameCollection shop.b  to shop.c"}},
	{"shop", bson.D{{Key: "drop", Value: "c"}}, []string{"drop shop.c "}},
	{"shop", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "a"}, {Key: "pipeline", Value: bson.A{}}}, []string{"create shop.v "}},
	{"shop", bson.D{{Key: "collMod", Value: "v"}, {Key: "viewOn", Value: "x"}, {Key: "pipeline", Value: bson.A{}}}, []string{"collMod shop.v "}},
	{"shop", bson.D{{Key: "drop", Value: "v"}}, []string{"drop shop.v "}},
	{"mine", bson.D{{Key: "insert", Value: "a"}, docs(1)}, nil}, // not mirrored
}

func describe(w *guard.Write) string {
	text := fmt.Sprintf("%s %s %s", w.Kind, w.NS, w.ID)
	if w.To != "" {
		text += " to " + string(w.To)
	}
	if w.Session != "" {
		text += fmt.Sprintf(" in %s %d", w.Session[:2], w.Txn)
	}
	return text
}

// tells waits for as many foreign writes as are wanted, and compares them.
func (g *guarded) tells(want []string) {
	g.t.Helper()
	g.told += int64(len(want))
	must.Succeed(g.t, g.untilOf(g.l, fmt.Sprint("foreign writes: ", want), func() bool { st := g.state(); return st.Total() >= g.told }))
	st := g.state()
	var got []string
	for i := range min(len(want), len(st.Writes)) {
		got = append(got, describe(&st.Writes[i]))
	}
	slices.Reverse(got)
	if diff := cmp.Diff(want, got); diff != "" || st.Total() != g.told {
		g.t.Errorf("%d foreign writes, want %d (-want +got):\n%s", st.Total(), g.told, diff)
	}
}

// TestForeignWrites: foreign writes of every kind to mirrored namespaces are told while the link
// writes to the same collections, each with its document, session and time, and nothing else is.
func TestForeignWrites(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, scope.Config{Include: []string{"buy"}, Map: []string{"buy=shop"}}, pipeline.Config{})
	load := func(from int) {
		must.Succeed(t, g.source.write(t.Context(), "buy", bson.D{{Key: "insert", Value: "a"}, docs(1000+from, 2000+from)}))
		must.Succeed(t, g.source.write(t.Context(), "buy", bson.D{{Key: "create", Value: fmt.Sprint("own", from)}}))
		must.Succeed(t, g.source.write(t.Context(), "buy", bson.D{{Key: "drop", Value: fmt.Sprint("own", from)}}))
		must.Succeed(t, g.caughtUp(g.l))
	}
	for i, f := range foreignWrites {
		load(i)
		before := time.Now().Add(-time.Second)
		must.Succeed(t, g.target.write(t.Context(), f.db, f.cmd))
		if len(f.want) == 0 {
			continue
		}
		g.tells(f.want)
		if at := g.state().Writes[0].Wall; at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s: at %s, want the time of the write", f.want, at)
		}
	}
	load(len(foreignWrites))
	g.tells(nil)
	st := g.state()
	var touched []string
	for _, n := range st.Touched {
		touched = append(touched, string(n.NS))
	}
	if diff := cmp.Diff([]string{"shop.a", "shop.b", "shop.c", "shop.v"}, touched); diff != "" {
		t.Error(diff)
	}
	g.l.drain(nil)
	must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
	must.Succeed(t, g.l.err)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestForeignWritesWhileNobodyRan: a foreign write made while no process ran is found by the next one;
// with guard.Stop, before that writes anything itself. Once an operator has cleared it, the link
// continues.
func TestForeignWritesWhileNobodyRan(t *testing.T) {
	t.Parallel()
	sc := scope.Config{Include: []string{"shop"}}
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, sc, pipeline.Config{})
	must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(1)}))
	must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "create", Value: "b"}}))
	must.Succeed(t, g.caughtUp(g.l))
	g.l.drain(nil)
	must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
	must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(2)}))
	must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "drop", Value: "b"}}))
	must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(3)}))

	for range 2 { // The second time it is read from the metadata.
		must.Succeed(t, g.world.start("a", pipeline.Config{Writers: 4, Guard: guard.Stop}, sc))
		g.l = g.links["a"]
		must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
		found, ok := errors.AsType[*guard.ForeignError](g.l.err)
		if !ok || failure.Classify(g.l.err).Code != failure.ExitDiverged || found.Namespaces != 2 || strings.Contains(g.l.err.Error(), "fetcher") {
			t.Fatalf("it ended with %v, want the foreign writes", g.l.err)
		}
	}
	if n := must.Get(g.target.count(t.Context(), "shop.a"))(t); n != 2 {
		t.Errorf("%d documents in shop.a: it has written something itself", n)
	}
	g.told = 0
	g.tells([]string{"insert shop.a 2", "drop shop.b "})
	store := guard.Store{Target: g.target.conn, DB: "replicator", Link: "mirror"}
	must.Succeed(t, store.Clear(t.Context(), must.Get(store.Read(t.Context()))(t).At.TS))
	g.start(sc, pipeline.Config{Guard: guard.Stop})
	must.Succeed(t, g.caughtUp(g.l))
	if st := g.state(); st.IsTouched() || st.Total() != 2 {
		t.Errorf("after it was cleared: %+v", st)
	}
}

// TestForeignWritesStop: with guard.Stop a foreign write ends a link that runs.
func TestForeignWritesStop(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, scope.Config{}, pipeline.Config{Guard: guard.Stop})
	must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(2)}))
	must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
	if v := failure.Classify(g.l.err); !errors.As(g.l.err, new(*guard.ForeignError)) || v.Action != failure.Exit || !strings.HasPrefix(g.l.err.Error(), "something else writes to the target: insert of shop.a") {
		t.Errorf("it ended with %v", g.l.err)
	}
}

// TestForeignWritesOfEarlierRelease: what a process without the guard may have sent is not taken
// for foreign, but documents are judged all the same.
func TestForeignWritesOfEarlierRelease(t *testing.T) {
	t.Parallel()
	sc := scope.Config{}
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, sc, pipeline.Config{})
	for _, mode := range []guard.Mode{guard.Off, guard.Alarm} {
		g.l.drain(nil)
		must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
		if mode == guard.Off {
			must.Succeed(t, g.world.start("a", pipeline.Config{Writers: 4, Guard: guard.Off}, sc))
			g.l = g.links["a"]
			must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "create", Value: "b"}}))
			must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "drop", Value: "b"}}))
			must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "b"}, {Key: "pipeline", Value: bson.A{}}}))
			must.Succeed(t, g.caughtUp(g.l))
			must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(2)}))
			continue
		}
		g.start(sc, pipeline.Config{})
	}
	// The collection was created by that insert, which is a command.
	g.tells([]string{"insert shop.a 2"})
}

// TestForeignWriteBeforeResync: a foreign write that is found while its collection is copied again, and was made
// before that was asked for, is dealt with by the copy.
func TestForeignWriteBeforeResync(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..20
		start copy flush=10 copies=1
		await caught-up
		await running
		drain
	`)
	w.foreign.Store(true)
	must.Succeed(t, w.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(999)}))
	w.play(`
		resync shop.a
		start copy flush=10 copies=1
		await resync done shop.a
		await caught-up
	`)
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "the foreign write to be found and dealt with", func() bool {
		st := l.p.Snapshot().Guard.State
		return st.Total() == 1 && !st.IsTouched()
	}))
	if n := must.Get(w.target.count(t.Context(), "shop.a"))(t); n != 20 {
		t.Errorf("%d documents in shop.a", n)
	}
}

// denied is a target that does not show its oplog.
type denied struct {
	pipeline.Cluster
	mongo.Pipeliner
	err error
}

func (d denied) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB == "local" {
		return nil, d.err
	}
	return d.Cluster.Call(ctx, cmd)
}

// TestGuardDenied: a link that the target does not show its oplog, whatever the reason is, mirrors, and
// says that it does not watch; with guard.Stop it ends.
func TestGuardDenied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		why  string
		code int
	}{
		"no privilege": {servererr.New(servererr.Unauthorized, "not authorized on local"), "local.oplog.rs", failure.ExitConnect},
		"no majority":  {servererr.New(148, "Majority read concern requested, but it is not supported"), "148", failure.ExitUnexpected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			moods := mongosim.NoMoods("what is refused is looked at")
			w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: moods}, mongosim.Options{Members: 1, Seed: 2, Moods: moods})
			w.asTarget = func(to pipeline.Cluster) pipeline.Cluster { return denied{to, to.(mongo.Pipeliner), c.err} }
			must.Succeed(t, w.start("a", pipeline.Config{Writers: 2}, scope.Config{}))
			l := w.links["a"]
			must.Succeed(t, w.untilOf(l, "a link that follows", func() bool { return l.p.Snapshot().State == monitor.Steady }))
			must.Succeed(t, w.source.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(1)}))
			must.Succeed(t, w.caughtUp(l))
			if s := l.p.Snapshot().Guard; s.Watching || !strings.Contains(s.Why, c.why) {
				t.Errorf("it is said: %+v", s)
			}
			l.drain(nil)
			must.Succeed(t, w.until("the end", func() bool { return isClosed(l.done) }))
			must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, Guard: guard.Stop}, scope.Config{}))
			l = w.links["a"]
			must.Succeed(t, w.until("the end", func() bool { return isClosed(l.done) }))
			if code := failure.Classify(l.err).Code; code != c.code {
				t.Errorf("it ended with %v, code %d", l.err, code)
			}
		})
	}
}

// TestGuardSuperseded: a process that finds that a later leader has stored what it knows of foreign
// writes has lost the link.
func TestGuardSuperseded(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, scope.Config{}, pipeline.Config{})
	st := g.state()
	st.Term = 100
	store := guard.Store{Target: g.target.conn, DB: "replicator", Link: "mirror"}
	must.Succeed(t, store.Write(t.Context(), &st, true))
	must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(2)}))
	must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
	if !errors.Is(g.l.err, lease.ErrFenced) {
		t.Errorf("it ended with %v", g.l.err)
	}
}
