package catalog_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a target over a connection. Its lists have small batches.
type server struct {
	mu     sync.Mutex
	client *wire.Client
	sent   []string
	fail   string // the command that fails
}

var errCut = errors.New("the line was cut")

func connect(t *testing.T, dialect string) *server {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{
		Dialect: dialect, Seed: 1, HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	})
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", set.Primary().Host())
	if err != nil {
		t.Fatal(err)
	}
	client := wire.NewClient(conn)
	t.Cleanup(func() { _ = client.Close() })
	return &server{client: client}
}

// Call implements mongo.Caller.
func (s *server) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	elems, err := cmd.Body.Elements()
	if err != nil {
		return nil, err
	}
	name := elems[0].Key()
	s.sent = append(s.sent, name)
	if name == s.fail {
		return nil, &mongo.LostError{Host: "target", Err: errCut}
	}
	i, body := bsoncore.AppendDocumentStart(nil)
	for _, e := range elems {
		if e.Key() == "cursor" {
			body = bsoncore.AppendDocumentElement(body, "cursor", bsoncore.NewDocumentBuilder().AppendInt32("batchSize", 2).Build())
			continue
		}
		body = append(body, e...)
	}
	if name == "getMore" {
		body = bsoncore.AppendInt32Element(body, "batchSize", 1)
	}
	body = bsoncore.AppendStringElement(body, "$db", cmd.DB)
	if body, err = bsoncore.AppendDocumentEnd(body, i); err != nil {
		return nil, err
	}
	reply, err := s.client.Call(context.WithoutCancel(ctx), bson.Raw(body))
	if err != nil {
		return nil, err
	}
	return reply, mongo.Check(reply)
}

func (s *server) must(t *testing.T, cmd string) {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(cmd), false, &d); err != nil {
		t.Fatal(err)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Call(t.Context(), mongo.Command{DB: "db", Body: raw}); err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
}

// kind describes a collection briefly.
func kind(c *catalog.Collection) string {
	words := []string{c.Type.String()}
	for _, f := range []struct {
		name string
		on   bool
	}{{"ordered", c.Ordered}, {"capped", c.Capped}, {"direct", c.Direct}, {"uuid", !c.UUID.IsZero()}} {
		if f.on {
			words = append(words, f.name)
		}
	}
	return strings.Join(words, " ")
}

// TestGoneWhileListed: a collection that is dropped after it was listed, and before its
// indexes are read, is omitted. Where a view of its database is invalid, a server reports
// that instead of a missing collection.
func TestGoneWhileListed(t *testing.T) {
	t.Parallel()
	for _, views := range []string{"", `{"insert": "system.views", "documents": [{"_id": "db.bad", "pipeline": 7}]}`} {
		s := connect(t, "5.0")
		s.must(t, `{"create": "view", "viewOn": "gone", "pipeline": []}`)
		s.must(t, `{"create": "gone"}`)
		if views != "" {
			s.must(t, views)
		}
		drops := &dropping{server: s, t: t}
		c, err := catalog.Load(t.Context(), drops, []string{"db"})
		if err != nil {
			t.Fatalf("views %q: %v", views, err)
		}
		if _, there, err := c.Get(t.Context(), "db.gone"); there || err != nil || !drops.done {
			t.Errorf("views %q: there %t, dropped %t, %v", views, there, drops.done, err)
		}
	}
}

// dropping drops db.gone right before its indexes are read.
type dropping struct {
	*server
	t    *testing.T
	done bool
}

func (d *dropping) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if name, ok := cmd.Body.Lookup("listIndexes").StringValueOK(); ok && name == "gone" && !d.done {
		d.done = true
		d.must(d.t, `{"drop": "gone"}`) //nolint:contextcheck // it is another client
	}
	return d.server.Call(ctx, cmd)
}

func TestKinds(t *testing.T) {
	t.Parallel()
	s := connect(t, "7.0")
	for _, cmd := range []string{
		`{"create": "plain"}`,
		`{"create": "capped", "capped": true, "size": 4096}`,
		`{"create": "collated", "collation": {"locale": "en", "strength": 3}}`,
		`{"create": "simple", "collation": {"locale": "simple"}}`,
		`{"createIndexes": "indexed", "indexes": [{"key": {"x": 1}, "name": "x"}, {"key": {"y": 1}, "name": "y"}, {"key": {"_id": "hashed"}, "name": "h"}]}`,
		`{"createIndexes": "unique", "indexes": [{"key": {"x": 1}, "name": "x"}, {"key": {"y": 1}, "name": "y"}, {"key": {"z": 1}, "name": "z", "unique": true}]}`,
		`{"createIndexes": "compound", "indexes": [{"key": {"_id": 1, "y": 1}, "name": "y", "unique": true}]}`,
		`{"createIndexes": "prepared", "indexes": [{"key": {"z": 1}, "name": "z", "prepareUnique": true}]}`,
		`{"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "name": "c", "unique": true}}`,
		`{"create": "series", "timeseries": {"timeField": "t"}}`,
		`{"create": "view", "viewOn": "plain", "pipeline": []}`,
		`{"create": "system.js"}`,
	} {
		s.must(t, cmd)
	}
	want := map[string]string{
		"plain":                 "collection uuid",
		"capped":                "collection ordered capped direct uuid",
		"collated":              "collection ordered uuid",
		"simple":                "collection uuid",
		"indexed":               "collection uuid",
		"unique":                "collection ordered uuid",
		"compound":              "collection ordered uuid",
		"prepared":              "collection ordered uuid",
		"clustered":             "collection uuid",
		"series":                "timeseries",
		"system.buckets.series": "collection direct uuid",
		"view":                  "view",
		"system.views":          "collection direct uuid",
		"system.js":             "collection direct uuid",
	}
	c, err := catalog.Load(t.Context(), s, []string{"db"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(s.sent, "getMore") {
		t.Error("no list was too long for one reply")
	}
	all, err := c.Database(t.Context(), "db")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, coll := range all {
		got[coll.NS.Collection()] = kind(coll)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDemandAndRefresh(t *testing.T) {
	t.Parallel()
	s := connect(t, "5.0")
	ctx := t.Context()
	c, err := catalog.Load(ctx, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(ns oplog.Namespace, want string) {
		t.Helper()
		coll, ok, err := c.Get(ctx, ns)
		got := "none"
		if ok {
			got = kind(coll)
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", ns, got, err, want)
		}
	}
	s.must(t, `{"create": "a"}`)
	get("db.a", "collection uuid")
	get("db.b", "none")
	if _, dbs := c.Known(); !slices.Equal(dbs, []string{"db"}) {
		t.Error(dbs)
	}

	// Nothing is read twice, and changes without a Refresh are not noticed.
	before := len(s.sent)
	s.must(t, `{"create": "b", "capped": true, "size": 4096}`)
	get("db.a", "collection uuid")
	get("db.b", "none")
	if asked := s.sent[before+1:]; len(asked) > 0 {
		t.Error(asked)
	}
	if err := c.Refresh(ctx, "db.b"); err != nil {
		t.Fatal(err)
	}
	get("db.b", "collection ordered capped direct uuid")

	s.must(t, `{"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x", "unique": true}]}`)
	s.must(t, `{"drop": "b"}`)
	// The state after a failed read is unknown: the next Get reads it.
	for _, fail := range []string{"listCollections", "listIndexes"} {
		s.fail = fail
		if err := c.Refresh(ctx, "db.a", "db.b"); !errors.Is(err, errCut) {
			t.Errorf("%s: %v", fail, err)
		}
		if _, _, err := c.Get(ctx, "db.a"); !errors.Is(err, errCut) {
			t.Errorf("%s: %v", fail, err)
		}
	}
	s.fail = ""
	get("db.a", "collection ordered uuid")
	get("db.b", "none")

	s.fail = "listCollections"
	if _, err := catalog.Load(ctx, s, []string{"db"}); !errors.Is(err, errCut) {
		t.Error(err)
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	s := connect(t, "5.0")
	s.must(t, `{"create": "a"}`)
	c, err := catalog.Load(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				if i == 0 {
					if err := c.Refresh(t.Context(), "db.a"); err != nil {
						t.Error(err)
					}
				}
				if _, ok, err := c.Get(t.Context(), "db.a"); !ok || err != nil {
					t.Error(ok, err)
				}
			}
		})
	}
	wg.Wait()
}

// late is a target whose replies to listCollections can be delayed.
type late struct {
	*server
	mu   sync.Mutex
	hold chan struct{} // delays the next reply; nil means no delay
	held chan struct{} // closed when the reply is delayed
}

func (l *late) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := l.server.Call(ctx, cmd)
	if _, lookErr := cmd.Body.LookupErr("listCollections"); lookErr != nil {
		return reply, err
	}
	l.mu.Lock()
	hold, held := l.hold, l.held
	l.hold = nil
	l.mu.Unlock()
	if hold != nil {
		close(held)
		<-hold
	}
	return reply, err
}

// A read that started before a change does not replace one that started after it, whether
// one collection was read or the whole database.
func TestOlderReadingsDoNotCount(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		l := &late{server: connect(t, "5.0")}
		l.must(t, `{"create": "a"}`)
		var dbs []string
		if !whole {
			dbs = append(dbs, "db")
		}
		c, err := catalog.Load(t.Context(), l, dbs)
		if err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		l.hold, l.held = hold, make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if whole {
				_, _, err := c.Get(t.Context(), "db.other")
				if err != nil {
					t.Error(err)
				}
			} else if err := c.Refresh(t.Context(), "db.a"); err != nil {
				t.Error(err)
			}
		})
		<-l.held
		l.must(t, `{"drop": "a"}`)
		l.must(t, `{"create": "a", "capped": true, "size": 4096}`)
		if err := c.Refresh(t.Context(), "db.a"); err != nil {
			t.Fatal(err)
		}
		close(hold)
		wg.Wait()
		coll, there, err := c.Get(t.Context(), "db.a")
		if err != nil || !there || !coll.Capped {
			t.Errorf("whole=%v: %+v, there: %v, %v; want the capped one", whole, coll, there, err)
		}
	}
}

// liar is a target with arbitrary replies.
type liar []byte

func (l liar) Call(context.Context, mongo.Command) (bson.Raw, error) { return bson.Raw(l), nil }

// FuzzReplies gives a catalog any reply: it returns an error, or collections that have a
// name and a type.
func FuzzReplies(f *testing.F) {
	for _, d := range []bson.D{
		{},
		{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.$cmd"}, {Key: "firstBatch", Value: bson.A{}}}}},
		{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.$cmd"}, {Key: "firstBatch", Value: bson.A{
			bson.D{
				{Key: "name", Value: "a"},
				{Key: "type", Value: "collection"},
				{Key: "options", Value: bson.D{{Key: "capped", Value: true}}},
				{Key: "info", Value: bson.D{{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
			},
		}}}}},
	} {
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		c, err := catalog.Load(t.Context(), liar(reply), []string{"db"})
		if err != nil {
			return
		}
		all, err := c.Database(t.Context(), "db")
		if err != nil {
			t.Fatal(err)
		}
		for _, coll := range all {
			if !coll.NS.IsCollection() || coll.Type < catalog.TypeCollection || coll.Type > catalog.TypeTimeseries {
				t.Errorf("%+v", coll)
			}
		}
	})
}
