package inventory_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an expected condition.
const patience = 2 * time.Minute

// server is an embedded set, spoken to as the program does.
type server struct {
	mongo.Caller
	set *mongosim.Set
}

func start(t testing.TB, opts mongosim.Options) *server {
	t.Helper()
	if opts.TTLInterval == 0 {
		opts.TTLInterval = -1
	}
	set := mongosim.StartTest(t, opts)
	if opts.Recording != nil {
		return &server{open(t, set.URI()).Member(set.Member(0).Host()), set}
	}
	return &server{open(t, set.URI()).Member(set.Primary().Host()), set}
}

func open(t testing.TB, uri string) *driver.Set {
	t.Helper()
	return client.Open(t, driver.Config{URI: uri, AppName: mongosim.Stage})
}

// must runs a command in extended JSON.
func (s *server) must(t testing.TB, db, cmd string) bson.Raw {
	t.Helper()
	reply, err := s.Call(t.Context(), mongo.Command{DB: db, Body: bsongen.FromJSON(t, cmd)})
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	if refused, err := mongo.WriteErrors(reply); err != nil || len(refused) > 0 {
		t.Fatalf("%s: %v %v", cmd, refused, err)
	}
	return reply
}

// now is the set's newest entry.
func (s *server) now(t testing.TB) oplog.OpTime {
	t.Helper()
	v, ok := s.set.Member(0).Status()
	if !ok {
		t.Fatal("the member is down")
	}
	return v.LastApplied
}

// setLog is the whole oplog of a set.
type setLog struct {
	*server
	// waits are the times that were waited for.
	waits []bson.Timestamp
}

func (l *setLog) WaitFor(_ context.Context, ts bson.Timestamp) error {
	l.waits = append(l.waits, ts)
	return nil
}

func (l *setLog) Commands(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	if len(l.waits) == 0 || oplog.CompareTimestamps(l.waits[len(l.waits)-1], until) < 0 {
		return errors.New("commands are read that were not waited for")
	}
	return l.read(ctx, after, until, func(e *oplog.Entry) error {
		if e.Kind != oplog.KindCommand {
			return nil
		}
		return yield(e)
	})
}

// read reads entries. Each is valid until yield returns.
func (l *setLog) read(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	cmd, err := bson.Marshal(bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "batchSize", Value: 1 << 20}, {Key: "filter", Value: bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: after.TS}, {Key: "$lte", Value: until}}},
	}}})
	if err != nil {
		return err
	}
	docs, err := catalog.ReadAll(ctx, l, "local", cmd)
	for _, doc := range docs {
		if err != nil {
			return err
		}
		var e oplog.Entry
		if err = e.Parse(doc); err == nil {
			err = yield(&e)
			clear(doc) // it was a view
		}
	}
	return err
}

func newScope(t testing.TB, cfg scope.Config) *scope.Scope {
	t.Helper()
	s, err := scope.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// take lists a source of which nothing but its log is known.
func (s *server) take(t testing.TB, names scope.Config, begin oplog.OpTime) *inventory.Inventory {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	inv, err := inventory.Take(ctx, inventory.Config{Source: s, Scope: newScope(t, names), Log: &setLog{server: s}, Begin: begin})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// state returns the catalog of all databases but the server's own, overlaid with
// the deferred options.
func (s *server) state(t testing.TB) memstore.State {
	t.Helper()
	held, err := ddl.ReadDeferred(t.Context(), s, "replicator", "link")
	if err != nil {
		t.Fatal(err)
	}
	var state memstore.State
	list, _ := s.must(t, "admin", `{"listDatabases": 1, "nameOnly": true}`).Lookup("databases").Array().Values()
	for _, v := range list {
		db := v.Document().Lookup("name").StringValue()
		if slices.Contains([]string{"local", "admin", "config", "replicator"}, db) {
			continue
		}
		docs, err := catalog.List(t.Context(), s, db, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			c := memstore.CollectionState{
				NS:      oplog.NewNamespace(db, d.Lookup("name").StringValue()),
				Type:    d.Lookup("type").StringValue(),
				Options: d.Lookup("options").Document(),
			}
			if c.Type == memstore.TypeCollection {
				if c.Indexes, err = catalog.Indexes(t.Context(), s, c.NS); err != nil {
					t.Fatal(err)
				}
			}
			c.Options, c.Indexes = held.Overlay(c.NS, c.Options, c.Indexes)
			state.Collections = append(state.Collections, c)
		}
	}
	slices.SortFunc(state.Collections, func(a, b memstore.CollectionState) int { return strings.Compare(string(a.NS), string(b.NS)) })
	return state
}

// fence is one that lets everything through.
type fence struct{ target mongo.Caller }

func (fence) Check(context.Context) error { return nil }

func (f fence) Within(ctx context.Context, work func(mongo.Caller) error) error {
	txn := mongo.NewSession(f.target, mongo.NewSessionID(), 1).Begin()
	if err := work(txn); err != nil {
		txn.Abort(ctx)
		return err
	}
	_, err := txn.Commit(ctx, true)
	return err
}

// executor carries out operations on a target.
func (s *server) executor(t testing.TB, names scope.Config, unique ddl.UniqueIndexes) *ddl.Executor {
	t.Helper()
	all, err := catalog.Load(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := ddl.New(ddl.Config{Target: s, Fence: fence{s}, Catalog: all, Scope: newScope(t, names), Link: "link", UniqueIndexes: unique})
	if err != nil {
		t.Fatal(err)
	}
	return exec
}

// build makes everything that an inventory has.
func build(t testing.TB, exec *ddl.Executor, inv *inventory.Inventory, at oplog.OpTime) {
	t.Helper()
	apply := func(op *oplog.Op, err error) {
		t.Helper()
		if err == nil {
			err = exec.Apply(t.Context(), op, ddl.Copied)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range inv.Collections {
		apply(inventory.CreateOp(&inv.Collections[i], at))
	}
	for i := range inv.Collections {
		if c := &inv.Collections[i]; len(c.Indexes) > 0 {
			apply(inventory.IndexesOp(c, c.Indexes, at))
		}
	}
	for _, view := range inv.Views {
		apply(inventory.ViewOp(view, at))
	}
}
