package ddl_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a target over a connection, as an ordinary client has it.
type server struct {
	mu     sync.Mutex
	client *wire.Client
	// before and after, if set, are called around each command.
	before, after func(cmd mongo.Command) error
	sent          int
}

// connect starts a target. A dialect may be followed by a feature compatibility version: "6.0/5.0".
func connect(t testing.TB, dialect string) *server {
	t.Helper()
	dialect, fcv, _ := strings.Cut(dialect, "/")
	set := mongosim.StartTest(t, mongosim.Options{
		Dialect: dialect, FCV: fcv, Seed: 1, HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
		TTLInterval: -1,
	})
	var dialer net.Dialer
	conn := must.Get(dialer.DialContext(t.Context(), "tcp", set.Primary().Host()))(t)
	client := wire.NewClient(conn)
	t.Cleanup(func() { _ = client.Close() })
	return &server{client: client}
}

// cutAt counts commands from 0, and interrupts the n-th one, before it is sent or, if it is executed, before its reply, until the
// function it returns is called.
func (s *server) cutAt(n int, executed bool) (uncut func()) {
	s.sent = 0
	cut := func(mongo.Command) error {
		if s.sent == n+1 {
			return &mongo.LostError{Host: "target", Err: errCut}
		}
		return nil
	}
	if executed {
		s.after = cut
	} else {
		s.before = cut
	}
	return func() { s.before, s.after = nil, nil }
}

// Call implements mongo.Caller.
func (s *server) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	if s.before != nil {
		if err := s.before(cmd); err != nil {
			return nil, err
		}
	}
	body := slices.Clone(cmd.Body[:len(cmd.Body)-1])
	body = bsoncore.AppendStringElement(body, "$db", cmd.DB)
	if cmd.Sequence != "" {
		docs := bsoncore.NewArrayBuilder()
		for _, doc := range cmd.Docs {
			docs.AppendDocument(bsoncore.Document(doc))
		}
		body = bsoncore.AppendArrayElement(body, cmd.Sequence, docs.Build())
	}
	body = append(body, 0)
	body = bson.Raw(bsoncore.UpdateLength(body, 0, int32(len(body))))
	if ctx.Err() != nil {
		return nil, &mongo.LostError{Host: "target", Err: context.Cause(ctx)}
	}
	// Started commands are completed: an interrupted connection could not be reused.
	reply, err := s.client.Call(context.WithoutCancel(ctx), body)
	if err != nil {
		return nil, &mongo.LostError{Host: "target", Err: err}
	}
	if s.after != nil {
		if err := s.after(cmd); err != nil {
			return nil, err
		}
	}
	return reply, mongo.Check(reply)
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

// databases returns those that may be mirrored to.
func (s *server) databases(t testing.TB) []string {
	t.Helper()
	var names []string
	list, _ := s.must(t, "admin", `{"listDatabases": 1, "nameOnly": true}`).Lookup("databases").Array().Values()
	for _, v := range list {
		switch name := v.Document().Lookup("name").StringValue(); name {
		case "local", "admin", "config", "replicator":
		default:
			names = append(names, name)
		}
	}
	return names
}

// state returns the target's catalog, overlaid with the deferred specs if requested.
func (s *server) state(t testing.TB, overlay bool) memstore.State {
	t.Helper()
	deferred, err := ddl.ReadDeferred(t.Context(), s, "replicator", "link")
	if err != nil {
		t.Fatal(err)
	}
	var state memstore.State
	for _, db := range s.databases(t) {
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
			if overlay {
				c.Options, c.Indexes = deferred.Overlay(c.NS, c.Options, c.Indexes)
			}
			state.Collections = append(state.Collections, c)
		}
	}
	slices.SortFunc(state.Collections, func(a, b memstore.CollectionState) int { return strings.Compare(string(a.NS), string(b.NS)) })
	return state
}

// bench is a target with an executor's dependencies.
type bench struct {
	*server
	cfg    ddl.Config
	exec   *ddl.Executor
	events []event.Event
	optime uint32
	// read is the timestamp up to which the server's log was read.
	read bson.Timestamp
}

func newBench(t testing.TB, dialect string, unique ddl.UniqueIndexes, names scope.Config) *bench {
	t.Helper()
	sc := must.Get(scope.New(names))(t)
	b := &bench{server: connect(t, dialect)}
	b.cfg = ddl.Config{
		Target: b.server, Fence: open{b.server}, Scope: sc, Link: "link", UniqueIndexes: unique,
		Observer: func(e event.Event) { b.events = append(b.events, e) },
	}
	b.restart(t)
	return b
}

// number is the last transaction number used, one is locked during a transaction.
var (
	number atomic.Int64
	one    sync.Mutex
)

// open is a fence that permits everything.
type open struct{ target mongo.Caller }

func (open) Check(context.Context) error { return nil }

func (o open) Within(ctx context.Context, work func(mongo.Caller) error) error {
	one.Lock()
	defer one.Unlock()
	// As of a new lease: its transactions abort an interrupted one.
	txn := mongo.NewSession(o.target, mongo.SessionID("link"), number.Add(1<<20)).Begin()
	if err := work(txn); err != nil {
		txn.Abort(ctx)
		return err
	}
	_, err := txn.Commit(ctx, true)
	return err
}

// plain is a target that does not support transactions.
type plain struct{ target mongo.Caller }

func (plain) Check(context.Context) error { return nil }

func (p plain) Within(_ context.Context, work func(mongo.Caller) error) error { return work(p.target) }

// restart continues with nothing in memory.
func (b *bench) restart(t testing.TB) {
	t.Helper()
	var err error
	if b.cfg.Catalog, err = catalog.Load(t.Context(), b.server, nil); err != nil {
		t.Fatal(err)
	}
	if b.exec, err = ddl.New(b.cfg); err != nil {
		t.Fatal(err)
	}
}

// operation reads "KIND NS {o} {o2}".
func (b *bench) operation(t testing.TB, line string) *oplog.Op {
	t.Helper()
	kind, rest, _ := strings.Cut(line, " ")
	ns, rest, _ := strings.Cut(rest, " ")
	b.optime++
	e := bson.D{
		{Key: "op", Value: kind},
		{Key: "ns", Value: ns},
		{Key: "ts", Value: bson.Timestamp{T: 100, I: b.optime}},
		{Key: "t", Value: int64(1)},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(0)},
	}
	var parts []any
	if err := bson.UnmarshalExtJSON([]byte(`{"p": [`+strings.ReplaceAll(rest, "} {", "}, {")+`]}`), false, &struct {
		P *[]any `bson:"p"`
	}{&parts}); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	e = append(e, bson.E{Key: "o", Value: parts[0]})
	if len(parts) > 1 {
		e = append(e, bson.E{Key: "o2", Value: parts[1]})
	}
	entry, err := oplog.ParseEntry(must.Marshal(t, e))
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return &entry.Op
}

// told returns the events since the last call.
func (b *bench) told() string {
	var text strings.Builder
	for _, e := range b.events {
		fmt.Fprintf(&text, "  %s: %s:", e.Level(), e.Message())
		for _, a := range e.LogValue().Group() {
			if a.Key != "optime" {
				fmt.Fprintf(&text, " %s=%v", a.Key, a.Value)
			}
		}
		text.WriteByte('\n')
	}
	b.events = nil
	return text.String()
}

var errCut = errors.New("the line was cut")

func isCut(err error) bool {
	lost, ok := errors.AsType[*mongo.LostError](err)
	return ok && errors.Is(lost, errCut)
}
