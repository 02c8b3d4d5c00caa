package initialsync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an embedded set with a connection like the program's.
type server struct {
	mongo.Caller
	set *mongosim.Set
}

func start(t testing.TB, seed int64, dialect string) *server {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{Seed: seed, Dialect: dialect, TTLInterval: -1})
	conn := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	return &server{conn, set}
}

func (s *server) run(t testing.TB, db string, cmd bson.D) {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := s.Call(t.Context(), mongo.Command{DB: db, Body: body})
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	if faults, err := mongo.WriteErrors(reply); err != nil || len(faults) > 0 {
		t.Fatalf("%v: %v", cmd, reply)
	}
}

func (s *server) json(t testing.TB, db string, commands ...string) {
	t.Helper()
	for _, text := range commands {
		var cmd bson.D
		if err := bson.UnmarshalExtJSON([]byte(text), false, &cmd); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		s.run(t, db, cmd)
	}
}

// fill inserts n documents.
func (s *server) fill(t testing.TB, db, coll string, n, padding int) {
	t.Helper()
	pad := strings.Repeat("x", padding)
	for from := 0; from < n; from += 500 {
		var docs bson.A
		for i := from; i < min(n, from+500); i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "a", Value: i % 7}, {Key: "pad", Value: pad}})
		}
		s.run(t, db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
	}
}

// quiet is the oplog of a source without writes.
type quiet struct{}

func (quiet) WaitFor(context.Context, bson.Timestamp) error { return nil }

func (quiet) Commands(context.Context, oplog.OpTime, bson.Timestamp, func(*oplog.Entry) error) error {
	return nil
}

func (quiet) Inserts(context.Context, oplog.OpTime, bson.Timestamp, func(*oplog.Entry) error) error {
	return nil
}

type commands struct{ *ddl.Executor }

func (c commands) Apply(ctx context.Context, op *oplog.Op) error {
	return c.Executor.Apply(ctx, op, ddl.Copied)
}

// link is a link between two sets that begins with a copy.
type link struct {
	source, target *server
	// caller is the caller that the copy uses for the target, member that for the source, and log the source's oplog.
	caller mongo.Caller
	member mongo.Caller
	log    inventory.InsertLog
	names  *scope.Scope
	store  *checkpoint.Store
	copy   checkpoint.Copy
	cfg    initialsync.Config
}

const writers = 4

func newLink(t testing.TB, source, target *server, names scope.Config) *link {
	t.Helper()
	l := &link{source: source, target: target, caller: target, member: source, log: quiet{}}
	var err error
	if l.names, err = scope.New(names); err != nil {
		t.Fatal(err)
	}
	if l.store, err = checkpoint.New(checkpoint.Config{Target: target, Link: "link"}); err != nil {
		t.Fatal(err)
	}
	id, err := origin.Identify(t.Context(), source, source.set.Primary().Host())
	if err != nil {
		t.Fatal(err)
	}
	at, err := origin.Begin(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	l.copy = checkpoint.Copy{
		Number: 1, Phase: checkpoint.Copying, Host: id.Host, RBID: id.RBID, SyncID: id.SyncID,
		FetchFrom: at.FetchFrom, Begin: at.Begin, Started: time.Now(),
	}
	must.Succeed(t, l.store.Prepare(t.Context()))
	if err := l.store.Create(t.Context(), checkpoint.State{
		Writers: writers, Fingerprint: "f", Applied: at.Begin, AppliedWall: at.Wall, FetchFrom: at.FetchFrom, Copy: &l.copy,
	}); err != nil {
		t.Fatal(err)
	}
	l.cfg = initialsync.Config{
		RangeBytes: 64 << 10, FlushDocs: 100, Workers: 3,
		Observer: func(e event.Event) {
			switch e.Message() {
			case "an index cannot be built on the target":
				t.Logf("%s %v", e.Message(), e.LogValue())
			case "a view cannot be made on the target":
				t.Errorf("%s %v", e.Message(), e.LogValue())
			}
		},
	}
	return l
}

// run is one process.
func (l *link) run(ctx context.Context, t testing.TB) (*initialsync.Copier, *checkpoint.Link, error) {
	t.Helper()
	st, ok, err := l.store.Load(ctx)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	link, err := l.store.Acquire(ctx, st.Term)
	if err != nil {
		t.Fatal(err)
	}
	cat, err := catalog.Load(ctx, l.caller, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := l.cfg
	cfg.Source, cfg.Target, cfg.Checkpoint, cfg.Scope, cfg.Log, cfg.Link = l.member, l.caller, link, l.names, l.log, "link"
	cfg.NewCommands = func(context.Context) (initialsync.Commands, error) {
		exec, err := ddl.New(ddl.Config{Target: l.caller, Fence: link, Catalog: cat, Scope: l.names, Link: "link"})
		return commands{exec}, err
	}
	c, err := initialsync.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, link, c.Run(ctx)
}

// check compares the target with the source.
func (l *link) check(t testing.TB, link *checkpoint.Link) {
	t.Helper()
	deferred, err := ddl.ReadDeferred(t.Context(), l.target, "replicator", "link")
	if err != nil {
		t.Fatal(err)
	}
	report, err := compare.Compare(t.Context(), compare.Cluster(l.source), compare.Cluster(l.target), compare.Options{Deferred: deferred, Map: l.names.Target})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Equal() {
		t.Errorf("%s", &report)
	}
	t.Logf("%d collections, %d documents", report.Collections, report.Documents)
	next := *link.Copy()
	if !next.Cleared || !next.Listed {
		t.Errorf("the copy is %+v", next)
	}
	next.Phase = checkpoint.Replaying
	if next.Stop, err = origin.Stop(t.Context(), l.source, next.Begin); err != nil {
		t.Fatal(err)
	}
	if err := progress.Of(link).UpdateCopy(t.Context(), next); err != nil {
		t.Error(err)
	}
}

// everyKind fills a source with collections of every kind.
func everyKind(t testing.TB, s *server, dialect string) {
	t.Helper()
	s.json(t, "db",
		`{"create": "empty"}`,
		`{"create": "capped", "capped": true, "size": 65536}`,
		`{"create": "emptycapped", "capped": true, "size": 65536, "max": 5}`,
		`{"create": "german", "collation": {"locale": "de", "strength": 2}}`,
		`{"create": "checked", "validator": {"a": {"$type": "int"}}, "validationAction": "warn"}`,
		`{"create": "view", "viewOn": "many", "pipeline": [{"$match": {"a": 1}}]}`,
		`{"create": "a view of a view", "viewOn": "view", "pipeline": []}`,
		`{"create": "with.dots and Ünicode ⛄"}`,
		`{"createIndexes": "many", "indexes": [
			{"key": {"a": 1}, "name": "a_1"}, {"key": {"u": 1, "_id": 1}, "name": "u", "unique": true},
			{"key": {"t": 1}, "name": "ttl", "expireAfterSeconds": 3600}, {"key": {"h": "hashed"}, "name": "h"},
			{"key": {"a": 1, "b": 1}, "name": "part", "partialFilterExpression": {"a": {"$gt": 3}}, "collation": {"locale": "fr"}}]}`,
		`{"createIndexes": "german", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`,
		`{"createIndexes": "capped", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}`,
	)
	s.fill(t, "db", "many", 1500, 300)
	s.fill(t, "db", "capped", 1000, 100) // more than it holds
	s.fill(t, "db", "checked", 3, 1)
	s.fill(t, "db", "with.dots and Ünicode ⛄", 10, 1)
	s.fill(t, "second", "c", 700, 1000)
	s.json(t, "db",
		`{"insert": "german", "documents": [{"_id": "b"}, {"_id": "ä"}, {"_id": "a"}]}`,
		`{"insert": "mixed", "documents": [{"_id": 1}, {"_id": "1"}, {"_id": {"a": 1}}, {"_id": null}, {"_id": true}, {"_id": {"$date": "2020-01-01T00:00:00Z"}}, {"_id": {"$minKey": 1}}, {"_id": 1.5}]}`,
	)
	if dialect >= "5.0" {
		s.json(t, "db",
			`{"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}, "expireAfterSeconds": 3600}`,
			`{"create": "emptyseries", "timeseries": {"timeField": "t"}}`,
			`{"create": "view of a series", "viewOn": "series", "pipeline": []}`)
	}
	if dialect >= "5.0" && dialect < "8.0" { // which compresses buckets: the embedded set does not
		s.json(t, "db", `{"insert": "series", "documents": [
			{"t": {"$date": "2020-01-01T00:00:00Z"}, "m": 1, "v": 1}, {"t": {"$date": "2020-01-01T00:00:01Z"}, "m": 2, "v": 2}]}`)
	}
	if dialect >= "6.0" {
		s.json(t, "db", `{"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "name": "by id", "unique": true}}`)
		s.fill(t, "db", "clustered", 300, 10)
	}
}

// rubbish creates leftovers in the target.
func rubbish(t testing.TB, s *server, dialect string) {
	t.Helper()
	s.fill(t, "db", "many", 20, 5)
	s.fill(t, "db", "old", 20, 5)
	s.json(t, "db",
		`{"create": "empty", "viewOn": "many", "pipeline": []}`,
		`{"create": "oldview", "viewOn": "many", "pipeline": []}`)
	s.json(t, "olddb", `{"create": "v", "viewOn": "x", "pipeline": []}`)
	if dialect >= "5.0" {
		s.json(t, "db", `{"create": "capped", "timeseries": {"timeField": "t"}}`)
	}
	s.json(t, "replicator", `{"insert": "deferred", "documents": [
		{"_id": {"link": "link", "ns": "db.gone", "index": "i"}, "uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}},
		 "deferred": ["unique"], "spec": {"$binary": {"base64": "BQAAAAA=", "subType": "00"}}}]}`)
}

func TestEveryKind(t *testing.T) {
	t.Parallel()
	for _, dialect := range mongosim.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			source, target := start(t, 1, dialect), start(t, 2, dialect)
			everyKind(t, source, dialect)
			rubbish(t, target, dialect)
			l := newLink(t, source, target, scope.Config{})
			c, link, err := l.run(t.Context(), t)
			if err != nil {
				t.Fatal(err)
			}
			l.check(t, link)
			p := c.Progress()
			if p.Step != initialsync.StepDone || p.Collections != p.TotalCollections || p.Docs != p.TotalDocs || p.Indexes != p.TotalIndexes || len(p.Failed) > 0 {
				t.Errorf("progress %+v", p)
			}
		})
	}
}

// TestNames copies under other names, and only some collections.
func TestNames(t *testing.T) {
	t.Parallel()
	source, target := start(t, 1, "5.0"), start(t, 2, "5.0")
	everyKind(t, source, "5.0")
	target.fill(t, "db", "many", 5, 5) // not in the way
	l := newLink(t, source, target, scope.Config{Include: []string{"db.*"}, Exclude: []string{"db.mixed"}, Map: []string{"db=copy"}})
	_, link, err := l.run(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	target.json(t, "db", `{"drop": "many"}`)
	l.check(t, link)
}

var errCut = errors.New("cut")

// cut is a Caller that passes a limited number of writes.
type cut struct {
	mongo.Caller
	left atomic.Int64
	// late carries the last one out, and loses its reply.
	late bool
}

func (c *cut) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	switch name := cmd.Body.Index(0).Key(); name {
	case "find", "getMore", "listCollections", "listIndexes", "listDatabases":
		return c.Caller.Call(ctx, cmd)
	}
	switch left := c.left.Add(-1); {
	case left < 0:
		return nil, &mongo.LostError{Err: errCut}
	case left == 0:
		if c.late {
			_, _ = c.Caller.Call(ctx, cmd)
		}
		return nil, &mongo.LostError{Err: errCut}
	}
	return c.Caller.Call(ctx, cmd)
}

// TestResumed repeatedly ends the process after some of its writes.
func TestResumed(t *testing.T) {
	t.Parallel()
	source, target := start(t, 1, "6.0"), start(t, 2, "6.0")
	everyKind(t, source, "6.0")
	rubbish(t, target, "6.0")
	l := newLink(t, source, target, scope.Config{})
	for life := 1; ; life++ {
		via := &cut{Caller: target, late: life%2 == 0}
		via.left.Store(int64(7 + 5*(life%5)))
		l.caller = via
		// The store has its own connection to the target, so the writes of lanes have
		// to be cut there.
		var err error
		if l.store, err = checkpoint.New(checkpoint.Config{Target: via, Link: "link"}); err != nil {
			t.Fatal(err)
		}
		via.left.Add(2 * (writers + 2)) // to acquire the lease
		_, link, err := l.run(t.Context(), t)
		if err == nil {
			t.Logf("%d processes", life)
			l.caller = target
			via.left.Store(1000)
			l.check(t, link)
			return
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if life == 1000 {
			t.Fatal("it does not get on")
		}
	}
}

// TestManyCollections copies 2,000 small ones, 400 under the race detector.
func TestManyCollections(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes seconds: not with -short")
	}
	many := 2000
	if race.Enabled {
		many = 400
	}
	source, target := start(t, 1, "5.0"), start(t, 2, "5.0")
	for i := range many {
		name := fmt.Sprintf("c%04d", i)
		source.run(t, fmt.Sprintf("db%d", i%3), bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}}}}})
	}
	l := newLink(t, source, target, scope.Config{})
	begun := time.Now()
	c, link, err := l.run(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("copied in %s", time.Since(begun))
	l.check(t, link)
	if p := c.Progress(); p.Collections != many || p.Docs != int64(many) {
		t.Errorf("progress %+v", p)
	}
}

// TestFailedIndex copies an index that the target cannot build.
func TestFailedIndex(t *testing.T) {
	t.Parallel()
	source, target := start(t, 1, "5.0"), start(t, 2, "5.0")
	source.fill(t, "db", "c", 10, 10)
	source.json(t, "db", `{"createIndexes": "c", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"b": 1}, "name": "b"}]}`)
	// Both at once, and the first by itself, twice: package ddl does so as well.
	spec, err := bson.Marshal(bson.D{{Key: "mode", Value: bson.D{{Key: "times", Value: 3}}}, {Key: "data", Value: bson.D{
		{Key: "failCommands", Value: bson.A{"createIndexes"}}, {Key: "errorCode", Value: 67},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(t, source, target, scope.Config{})
	must.Succeed(t, target.set.Primary().FailCommand(t.Context(), spec))
	c, _, err := l.run(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Progress()
	if p.Indexes != 1 || len(p.Failed) != 1 || p.Failed[0].Name != "a" || !strings.Contains(p.Failed[0].Why, "CannotCreateIndex") {
		t.Errorf("progress %+v", p)
	}
	deferred, err := ddl.ReadDeferred(t.Context(), target, "replicator", "link")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(deferred, func(h ddl.DeferredSpec) bool { return h.NS == "db.c" && h.Index == "a" && h.Absent }) {
		t.Errorf("deferred is %+v", deferred)
	}
}
