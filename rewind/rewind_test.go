package rewind

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// sides are an old source and a target, each with its connection.
type sides struct {
	t              *testing.T
	set            *mongosim.Set
	source, target *driver.Set
}

func newSides(t *testing.T) *sides {
	t.Helper()
	alone := mongosim.NoMoods("what is written decides")
	source, target := mongosim.StartTest(t, mongosim.Options{Moods: alone}), mongosim.StartTest(t, mongosim.Options{Moods: alone})
	return &sides{t, source, client.Open(t, driver.Config{URI: source.URI()}), client.Open(t, driver.Config{URI: target.URI()})}
}

func (s *sides) run(on mongo.Caller, db string, cmd bson.D) {
	s.t.Helper()
	reply := must.Get(on.Call(s.t.Context(), mongo.Command{DB: db, Body: must.Get(bson.Marshal(cmd))(s.t)}))(s.t)
	if e := mongo.ConcernError(reply); e != nil {
		s.t.Fatal(e)
	}
}

func (s *sides) insert(on mongo.Caller, db string, ids ...any) {
	s.t.Helper()
	docs := bson.A{}
	for _, id := range ids {
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: 1}})
	}
	s.run(on, db, bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: docs}})
}

func update(coll string, id any, set bson.D) bson.D {
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: set}}},
	}}}}
}

func (s *sides) newest() oplog.OpTime {
	v, _ := s.set.Primary().Status()
	return v.LastApplied
}

// list lists what the source has after an entry, a line each.
func (s *sides) list(after oplog.OpTime, change func(*Config)) ([]string, Summary, error) {
	s.t.Helper()
	cfg := &Config{
		Source: s.source, Target: s.target, After: after, From: after,
		Scope: must.Get(scope.New(scope.Config{Include: []string{"shop"}, Map: []string{"shop=store"}}))(s.t),
	}
	if change != nil {
		change(cfg)
	}
	var lines []string
	sum, err := List(s.t.Context(), cfg, func(l *Lost) error {
		what := fmt.Sprintf("%s %s>%s", l.Op, l.NS, l.To)
		if l.Op != "c" {
			what += fmt.Sprintf(" %s same=%v source=%v target=%v", l.ID, l.Same(), l.Source != nil, l.Target != nil)
		}
		if l.Delta {
			what += " delta"
		}
		if l.Txn > 0 {
			what += fmt.Sprintf(" txn of %d", l.Txn)
		}
		lines = append(lines, strings.ReplaceAll(what, "\"", ""))
		return nil
	})
	return lines, sum, err
}

func TestList(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.insert(s.source, "shop", "old", "gone")
	s.insert(s.target, "store", "old", "gone")
	after := s.newest()
	s.insert(s.source, "shop", "new")
	s.insert(s.source, "other", "x")
	s.insert(s.source, "shop", "both")
	s.insert(s.target, "store", "both")
	s.run(s.source, "shop", update("a", "old", bson.D{{Key: "v", Value: 2}}))
	s.run(s.source, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "gone"}}}, {Key: "limit", Value: 1}}}}})
	must.Succeed(t, mongo.NewSession(s.source, mongo.NewSessionID(), 1).InTxn(t.Context(), false, func(txn *mongo.Txn) error {
		for _, id := range []string{"t1", "t2"} {
			body := must.Get(bson.Marshal(bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}}))(t)
			if _, err := txn.Call(t.Context(), mongo.Command{DB: "shop", Body: body}); err != nil {
				return err
			}
		}
		return nil
	}))
	until := s.newest()
	s.run(s.source, "shop", bson.D{{Key: "create", Value: "made"}})
	want := []string{
		"i shop.a>store.a new same=false source=true target=false",
		"i shop.a>store.a both same=true source=true target=true",
		"u shop.a>store.a old same=false source=true target=true delta",
		"d shop.a>store.a gone same=false source=false target=true",
		"i shop.a>store.a t1 same=false source=true target=false txn of 2",
		"i shop.a>store.a t2 same=false source=true target=false txn of 2",
		"c shop.made>store.made",
	}
	got, sum, err := s.list(after, nil)
	if d := cmp.Diff(want, got); d != "" || err != nil || sum.Listed != 7 || sum.Differ != 6 {
		t.Errorf("%v, %+v:\n%s", err, sum, d)
	}
	got, _, err = s.list(after, func(c *Config) { c.Until = until.TS })
	if d := cmp.Diff(want[:6], got); d != "" || err != nil {
		t.Errorf("up to %s: %v:\n%s", until, err, d)
	}
	if got, sum, err = s.list(s.newest(), nil); len(got) != 0 || sum.Differ != 0 || err != nil {
		t.Errorf("after the newest entry: %v, %v", got, err)
	}
}

// TestListRefuses: an oplog without the recovery point has no list.
func TestListRefuses(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.insert(s.source, "shop", "x")
	at := s.newest()
	s.insert(s.source, "shop", "y")
	early := at
	early.TS.T -= 1000
	for name, c := range map[string]struct {
		after, from oplog.OpTime
		want        error
	}{
		"before the oplog":                    {at, early, ErrTooOld},
		"another term":                        {oplog.OpTime{TS: at.TS, Term: at.Term + 1}, oplog.OpTime{TS: at.TS, Term: at.Term + 1}, ErrOther},
		"rolled back to before it":            {oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 1000, I: 1}, Term: at.Term}, oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 1000, I: 1}, Term: at.Term}, ErrOther},
		"rolled back, but for where it reads": {oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 1000, I: 1}, Term: at.Term}, at, ErrOther},
	} {
		if _, _, err := s.list(c.after, func(cfg *Config) { cfg.From = c.from }); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestListDefaultReadConcern: writes that no majority has are listed, also where reads are of what a majority has by
// default.
func TestListDefaultReadConcern(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("what is durable decides")
	source := mongosim.StartTest(t, mongosim.Options{Moods: alone, DefaultReadConcern: "majority", JournalDelay: 2 * time.Second})
	s := newSides(t)
	s.set, s.source = source, client.Open(t, driver.Config{URI: source.URI()})
	s.insert(s.source, "shop", "x")
	s.insert(s.target, "store", "x")
	at := s.newest()
	change := append(update("a", "x", bson.D{{Key: "v", Value: 2}}), bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}})
	s.run(s.source, "shop", change)
	list, sum, err := s.list(at, nil)
	if err != nil || len(list) != 1 || sum.Differ != 1 {
		t.Errorf("%q, %+v, %v", list, sum, err)
	}
}

// interrupting is a member that interrupts every second command, and closes the cursor with that, or says that it is
// being shut down.
type interrupting struct {
	mongo.Caller
	n      int
	closed map[int64]bool
}

// Call implements mongo.Caller.
func (i *interrupting) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	cursor, more := cmd.Body.Lookup("getMore").Int64OK()
	if more && i.closed[cursor] {
		return nil, servererr.New(servererr.CursorNotFound, "cursor not found")
	}
	if i.n++; i.n%2 == 0 {
		i.closed[cursor] = true
		if i.n%4 == 0 {
			return nil, servererr.New(servererr.ShutdownInProgress, "quiesce")
		}
		return nil, servererr.New(servererr.Interrupted, "interrupted")
	}
	return i.Caller.Call(ctx, cmd)
}

// TestListInterrupted: a member that interrupts what it is asked is asked again, from the last entry on.
func TestListInterrupted(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.insert(s.source, "shop", "x")
	at := s.newest()
	for i := range 120 {
		s.insert(s.source, "shop", i)
	}
	list, sum, err := s.list(at, func(cfg *Config) { cfg.Source = &interrupting{Caller: cfg.Source, closed: map[int64]bool{}} })
	if err != nil || len(list) != 120 || sum.Listed != 120 {
		t.Errorf("%d entries, %+v, %v", len(list), sum, err)
	}
}

// TestListRename: a rename is listed if one of its names is mirrored. One that replaces a collection, as an aggregation with $out does, is
// all that the oplog has of that under its name.
func TestListRename(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	s.insert(s.source, "shop", "x")
	s.insert(s.target, "store", "x")
	after := s.newest()
	s.run(s.source, "shop", bson.D{{Key: "create", Value: "tmp"}})
	s.run(s.source, "admin", bson.D{{Key: "renameCollection", Value: "shop.tmp"}, {Key: "to", Value: "shop.a"}, {Key: "dropTarget", Value: true}})
	s.run(s.source, "admin", bson.D{{Key: "renameCollection", Value: "shop.a"}, {Key: "to", Value: "shop.b"}})
	s.run(s.source, "admin", bson.D{{Key: "renameCollection", Value: "shop.b"}, {Key: "to", Value: "shop.c"}})
	want := []string{"c shop.a>store.a", "c shop.a>store.a"}
	got, sum, err := s.list(after, func(c *Config) {
		c.Scope = must.Get(scope.New(scope.Config{Include: []string{"shop.a"}, Map: []string{"shop.a=store.a"}}))(t)
	})
	if d := cmp.Diff(want, got); d != "" || err != nil || sum.Differ != 2 {
		t.Errorf("%v, %+v:\n%s", err, sum, d)
	}
}
