package ddl_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/oplog"
)

// agedIndex is a target whose indexes all have an expireAfterSeconds, as on capped collections only earlier servers accept
// it.
type agedIndex struct {
	mongo.Caller
	age any
}

// Call implements mongo.Caller.
func (a agedIndex) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if simcaller.Name(cmd) != "listIndexes" {
		return a.Caller.Call(ctx, cmd)
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.a"}, {Key: "firstBatch", Value: bson.A{bson.D{
			{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x"}, {Key: "expireAfterSeconds", Value: a.age},
		}}},
	}}})
}

// TestHoldCapped: an index of a capped collection that expires nothing does not keep a link from beginning.
func TestHoldCapped(t *testing.T) {
	t.Parallel()
	u := unfinishedOn(t, "7.0")
	u.run("db", `{"drop": "a"}`)
	u.run("db", `{"create": "a", "capped": true, "size": 4096}`)
	u.run("db", `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x"}]}`)
	held, err := ddl.HoldExpiry(t.Context(), agedIndex{u.target, 3600}, "replicator", "link", "db",
		func(oplog.Namespace) bool { return true }, func(context.Context) error { return nil })
	if err != nil || len(held) != 0 {
		t.Errorf("held %q: %v", held, err)
	}
	if left := must.Get(ddl.ReadDeferred(t.Context(), u.target, "replicator", "link"))(t); len(left) != 0 {
		t.Errorf("deferred: %v", left)
	}
}

// TestHoldViews: views and time series, which listCollections shows without a UUID, do not keep a link from beginning: the age of a
// series is held.
func TestHoldViews(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "6.0", "7.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			u.run("db", `{"create": "v", "viewOn": "a", "pipeline": []}`)
			want := []string{}
			target := mongo.Caller(u.target)
			if dialect != "4.4" {
				u.run("db", `{"create": "s", "timeseries": {"timeField": "x"}, "expireAfterSeconds": 3600}`)
				want, target = append(want, "db.s "), agedIndex{u.target, 1<<31 - 1}
			}
			held := must.Get(ddl.HoldExpiry(t.Context(), target, "replicator", "link", "db",
				func(oplog.Namespace) bool { return true }, func(context.Context) error { return nil }))(t)
			if !slices.Equal(held, want) {
				t.Errorf("held %q, want %q", held, want)
			}
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			if dialect == "4.4" {
				return
			}
			series := must.Get(catalog.List(t.Context(), u.target, "db", "s"))(t)
			if age, _ := series[0].Lookup("options", "expireAfterSeconds").AsInt64OK(); age != 3600 {
				t.Errorf("given back: %v", series)
			}
		})
	}
}

// TestHoldSeries: an index of a time series that expires documents, which 7.0 has made possible, cannot be held, as collMod refuses it:
// the error says what to do, and nothing is left of the try.
func TestHoldSeries(t *testing.T) {
	t.Parallel()
	u := unfinishedOn(t, "7.0")
	u.run("db", `{"drop": "a"}`)
	u.run("db", `{"create": "a", "timeseries": {"timeField": "x", "metaField": "m"}}`)
	_, err := ddl.HoldExpiry(t.Context(), agedIndex{u.target, 3600}, "replicator", "link", "db",
		func(oplog.Namespace) bool { return true }, func(context.Context) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "drop index x and start the link again") {
		t.Errorf("error %v", err)
	}
	if left := must.Get(ddl.ReadDeferred(t.Context(), u.target, "replicator", "link"))(t); len(left) != 0 {
		t.Errorf("deferred: %v", left)
	}
}

// TestHoldCappedExpires: an index of a capped collection that expires documents, as from 7.1 on, is held, and expires them again.
func TestHoldCappedExpires(t *testing.T) {
	t.Parallel()
	for dialect, held := range map[string]int64{"4.4": 1<<31 - 1, "5.0": 1_600_000_000, "8.0": 1<<31 - 1} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			u := unfinishedOn(t, dialect)
			u.run("db", `{"drop": "a"}`)
			u.run("db", `{"create": "a", "capped": true, "size": 4096}`)
			u.run("db", `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": 3600}]}`)
			must.Get(ddl.HoldExpiry(t.Context(), u.target, "replicator", "link", "db",
				func(oplog.Namespace) bool { return true }, func(context.Context) error { return nil }))(t)
			if age, _ := u.age(); age != held {
				t.Errorf("held: documents expire after %d s, want %d", age, held)
			}
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			if age, _ := u.age(); age != 3600 {
				t.Errorf("expires: documents expire after %d s", age)
			}
		})
	}
}

// TestHoldNotANumber: an index whose expireAfterSeconds is not a number, by which 5.0 expires all documents, is held, and does not
// get that again.
func TestHoldNotANumber(t *testing.T) {
	t.Parallel()
	decimal := must.Get(bson.ParseDecimal128("NaN"))(t)
	for _, x := range []struct {
		dialect string
		held    int64
		age     any
	}{{"4.4", 1<<31 - 1, math.NaN()}, {"5.0", 1_600_000_000, math.NaN()}, {"4.4", 1<<31 - 1, decimal}, {"5.0", 1_600_000_000, decimal}} {
		t.Run(fmt.Sprintf("%s %T", x.dialect, x.age), func(t *testing.T) {
			t.Parallel()
			held := x.held
			u := unfinishedOn(t, x.dialect)
			u.run("db", `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": 3600}]}`)
			is := func(what string) {
				t.Helper()
				if age, _ := u.age(); age != held {
					t.Errorf("%s: documents expire after %d s, want %d", what, age, held)
				}
			}
			hold := func(free func() error) error {
				_, err := ddl.HoldExpiry(t.Context(), agedIndex{u.target, x.age}, "replicator", "link", "db",
					func(oplog.Namespace) bool { return true }, func(context.Context) error { return free() })
				return err
			}
			must.Succeed(t, hold(func() error { return nil }))
			is("held")
			c := must.Get(ddl.NewConverter(t.Context(), u.target, open{u.target}, "replicator", "link"))(t)
			must.Succeed(t, c.Expire(t.Context(), nil, nil))
			is("the link has ended")
			checks := 0
			err := hold(func() error {
				if checks++; checks == 2 { // once it is recorded
					u.run("replicator", `{"delete": "deferred", "deletes": [{"q": {}, "limit": 0}]}`)
				}
				return nil
			})
			if !errors.Is(err, ddl.ErrExpiryRestored) {
				t.Errorf("restored meanwhile: %v", err)
			}
			is("restored meanwhile")
		})
	}
}

// TestHoldDecimal: an expireAfterSeconds may be a decimal, which collMod of servers before 5.0 returns as it was. It is held, and restored
// if the record of it is gone meanwhile.
func TestHoldDecimal(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0"} {
		u := unfinishedOn(t, dialect)
		u.run("db", `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"x": 1}, "name": "x", "expireAfterSeconds": {"$numberDecimal": "3600"}}]}`)
		checks := 0
		asked := func() {
			if checks++; checks == 2 { // once it is recorded
				u.run("replicator", `{"delete": "deferred", "deletes": [{"q": {}, "limit": 0}]}`)
			}
		}
		_, err := ddl.HoldExpiry(t.Context(), u.target, "replicator", "link", "db",
			func(oplog.Namespace) bool { return true }, func(context.Context) error { asked(); return nil })
		if !errors.Is(err, ddl.ErrExpiryRestored) {
			t.Errorf("%s: %v", dialect, err)
		}
		spec := must.Get(catalog.Indexes(t.Context(), u.target, "db.a"))(t)[1]
		if age := spec.Lookup("expireAfterSeconds").String(); !strings.Contains(age, "3600") {
			t.Errorf("%s: restored: %s", dialect, spec)
		}
	}
}
