package cutover_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// write runs a command on a database of the target.
func write(t *testing.T, target mongo.Caller, db string, cmd bson.D) {
	t.Helper()
	body := must.Get(bson.Marshal(cmd))(t)
	must.Get(target.Call(t.Context(), mongo.Command{DB: db, Body: body}))(t)
}

func insert(t *testing.T, target mongo.Caller, db, coll string, id int) {
	t.Helper()
	write(t, target, db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}})
}

// leading creates a link at second 90, acquires its lease, and applies up to second 100.
func leading(t *testing.T, target mongo.Caller, name string) (*checkpoint.Store, *checkpoint.Link) {
	t.Helper()
	ctx := t.Context()
	s := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name}))(t)
	must.Succeed(t, s.Create(ctx, checkpoint.State{
		Writers: 1, Applied: ot(90), AppliedWall: 90_000, FetchFrom: ot(90), Source: checkpoint.Source{SetName: "rs0"}, Filters: &checkpoint.Filters{},
	}))
	h := must.Get(s.Acquire(ctx, 0))(t)
	l, next := h.Lane(0), checkpoint.Position{OpTime: ot(100)}
	txn := l.Session().Begin()
	must.Succeed(t, txn.End(ctx, true, l.Move(ctx, txn, next)))
	l.Moved(next)
	return s, h
}

// endOf ends the link of that name as of second 100, after do, and returns its end.
func endOf(t *testing.T, target mongo.Caller, name, reverse string, do ...func()) (*checkpoint.Over, error) {
	t.Helper()
	p := &play{t: t, notes: []any{noted}, cuts: []uint32{100}, target: must.Get(replset.NewestEntry(t.Context(), target, replset.Local))(t).OpTime.TS}
	for _, f := range do {
		f()
	}
	_, err := cutover.Run(t.Context(), &cutover.Config{
		Drain:  cutover.DrainConfig{Source: p, Cuts: p, Link: name, By: "me", Within: time.Minute},
		Target: target, MetaDB: "replicator", Process: "the operator's",
	}, &record.Options{Freeze: record.Stopped, Reverse: reverse})
	if err != nil {
		return nil, err
	}
	return must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name}))(t).Over(t.Context())
}

// TestArm: the way back begins at an entry after which nothing of the link follows, and has
// the filters of the link, reversed.
func TestArm(t *testing.T) {
	t.Parallel()
	target := open(t, "5.0")
	s, h := leading(t, target, "dr")
	must.Succeed(t, h.SetFilters(t.Context(), checkpoint.Filters{Include: []string{"shop"}, Map: []string{"shop=store"}}))
	insert(t, target, "other", "c", 1) // it is not mirrored
	over, err := endOf(t, target, "dr", "arm")
	if err != nil {
		t.Fatal(err)
	}
	v := must.Get(s.Over(t.Context()))(t).Reverse
	want := checkpoint.Filters{Include: []string{"shop"}, Map: []string{"shop=store"}, Reversed: true}
	if v == nil || !over.Reverse.Filters.Equal(v.Filters) || !v.Filters.Equal(want) || v.Start != over.Reverse.Start || v.Wall == 0 || v.Target.SetName == "" || v.Target.ReplicaSetID.IsZero() {
		t.Fatalf("the way back is %+v", v)
	}
	// After it come the end itself, and the lease's.
	if found := written(t, target, v.Start); len(found) > 0 {
		t.Errorf("after it: %v", found)
	}
	// Without it there is none.
	s, _ = leading(t, target, "one-way")
	if _, err := endOf(t, target, "one-way", record.NoReverse); err != nil || must.Get(s.Over(t.Context()))(t).Reverse != nil {
		t.Errorf("without a way back: %v", err)
	}
}

// written returns the writes to anything but metadata after an entry.
func written(t *testing.T, target mongo.Caller, after oplog.OpTime) []guard.Write {
	t.Helper()
	newest := must.Get(replset.NewestEntry(t.Context(), target, replset.Majority))(t)
	found, _, err := guard.Examine(t.Context(), target, guard.WatchConfig{
		Link: "nobody", MetaDB: "replicator", Scope: everything{}, Sessions: func(string, string) []bson.Raw { return nil },
	}, guard.State{At: after}, newest.OpTime, nil, func([]guard.Write) bool { return false })
	must.Succeed(t, err)
	return found
}

type everything struct{}

func (everything) Source(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, true }

// TestArmRefused: a link does not end if something else has written to what it mirrors since the
// cut, by a document or a command, or if it is not known what it mirrors.
func TestArmRefused(t *testing.T) {
	t.Parallel()
	target := open(t, "5.0")
	for name, tt := range map[string]struct {
		do   func()
		want string
	}{
		"insert": {func() { insert(t, target, "shop", "a", 1) }, "insert of shop.a {_id: 1}"},
		"create": {func() { write(t, target, "shop", bson.D{{Key: "create", Value: "b"}}) }, "create of shop.b"},
		"delete": {func() {
			write(t, target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
		}, "delete of shop.a"},
	} {
		insert(t, target, "shop", "a", 7+len(name))
		s, h := leading(t, target, name)
		_, err := endOf(t, target, name, "arm", tt.do)
		if !errors.Is(err, cutover.ErrWritten) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
		if over := must.Get(s.Over(t.Context()))(t); over != nil || h == nil {
			t.Errorf("%s: it has ended: %+v", name, over)
		}
		write(t, target, "shop", bson.D{{Key: "dropDatabase", Value: 1}})
	}
	s := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "earlier"}))(t)
	must.Succeed(t, s.Create(t.Context(), checkpoint.State{Writers: 1, Applied: ot(90), FetchFrom: ot(90), Source: checkpoint.Source{SetName: "rs0"}}))
	if _, err := endOf(t, target, "earlier", "arm"); !errors.Is(err, cutover.ErrNoWayBack) {
		t.Errorf("a link of an earlier release: %v", err)
	}
}
