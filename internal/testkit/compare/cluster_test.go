package compare_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster starts a set of one member and connects to it.
func cluster(t *testing.T) (*mongosim.Set, *driver.Set) {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1, Moods: mongosim.NoMoods("a cursor is lost at its first getMore, and which one that is counts")})
	conn := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	return set, conn
}

func run(t *testing.T, c mongo.Caller, cmd bson.D) {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.Call(t.Context(), mongo.Command{DB: "d", Body: body})
	if err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
	if faults, err := mongo.WriteErrors(reply); err != nil || len(faults) > 0 {
		t.Fatalf("%s: %v", cmd[0].Key, reply)
	}
}

func insert(t *testing.T, c mongo.Caller, coll string, docs ...any) {
	t.Helper()
	run(t, c, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A(docs)}})
}

// fill writes the same to every cluster.
func fill(t *testing.T, c mongo.Caller) {
	t.Helper()
	for _, cmd := range []bson.D{
		{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 16}},
		{{Key: "create", Value: "german"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}},
		{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "many"}, {Key: "pipeline", Value: bson.A{}}},
		{{Key: "createIndexes", Value: "many"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}}},
	} {
		run(t, c, cmd)
	}
	for i := range 5 { // more than one batch of a cursor
		var docs []any
		for j := range 100 {
			docs = append(docs, bson.D{{Key: "_id", Value: 100*i + j}, {Key: "x", Value: j}})
		}
		insert(t, c, "many", docs...)
	}
	for _, id := range []string{"b", "ä", "a"} {
		insert(t, c, "german", bson.D{{Key: "_id", Value: id}})
		insert(t, c, "capped", bson.D{{Key: "_id", Value: id}})
	}
}

func TestClusters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, a := cluster(t)
	set, b := cluster(t)
	fill(t, a)
	fill(t, b)
	sides := [2]compare.Side{compare.Cluster(a), compare.Cluster(b)}
	r, err := compare.Compare(ctx, sides[0], sides[1], compare.Options{})
	if err != nil || !r.Equal() || r.Collections != 5 || r.Documents != 507 {
		t.Errorf("%v %s", err, &r)
	}

	run(t, b, bson.D{{Key: "delete", Value: "many"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 444}}}, {Key: "limit", Value: 1}}}}})
	insert(t, b, "capped", bson.D{{Key: "_id", Value: "c"}})
	insert(t, a, "german", bson.D{{Key: "_id", Value: "o"}})
	run(t, b, bson.D{{Key: "dropIndexes", Value: "many"}, {Key: "index", Value: "x_1"}})
	r, err = compare.Compare(ctx, sides[0], sides[1], compare.Options{})
	if err != nil || r.Documents != 506 {
		t.Errorf("%v %s", err, &r)
	}
	var got []string
	for _, d := range r.Differences {
		got = append(got, d.String())
	}
	for i, want := range []string{"d.capped: document 3 in natural order: {", `d.german: _id "o": missing`, "d.many: index x_1: missing", `d.many: _id {"$numberInt":"444"}: missing`} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("difference %d of %q is not %q", i, got, want)
		}
	}

	// A cursor that is lost half way, or a primary that steps down there, is not taken for a shorter collection.
	refuse := func(mode any, code servererr.Code) {
		t.Helper()
		spec, err := bson.Marshal(bson.D{{Key: "mode", Value: mode}, {Key: "data", Value: bson.D{
			{Key: "failCommands", Value: bson.A{"getMore"}}, {Key: "errorCode", Value: int32(code)},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := set.Member(0).FailCommand(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	whole := r.String()
	for _, code := range []servererr.Code{servererr.CursorNotFound, servererr.InterruptedDueToReplStateChange, servererr.NotWritablePrimary} {
		refuse(bson.D{{Key: "times", Value: 1}}, code)
		if r, err = compare.Compare(ctx, sides[0], sides[1], compare.Options{}); err != nil || r.String() != whole {
			t.Errorf("interrupted with %s: %v, %s, want %s", code, err, &r, whole)
		}
	}
	refuse("alwaysOn", servererr.Unauthorized)
	_, err = compare.Compare(ctx, sides[0], sides[1], compare.Options{})
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.Unauthorized || !strings.Contains(err.Error(), "d.many") {
		t.Errorf("a cursor that may not be read on: %v", err)
	}
}

// TestInvalidViews: a definition that no server takes for a view keeps nothing else of
// its database from being compared, a time series included.
func TestInvalidViews(t *testing.T) {
	t.Parallel()
	_, a := cluster(t)
	_, b := cluster(t)
	for _, c := range []mongo.Caller{a, b} {
		fill(t, c)
		run(t, c, bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	}
	insert(t, a, "system.views", bson.D{{Key: "_id", Value: "d.bad"}, {Key: "viewOn", Value: "many"}, {Key: "pipeline", Value: 7}})
	report, err := compare.Compare(t.Context(), compare.Cluster(a), compare.Cluster(b), compare.Options{})
	if err != nil || !report.Equal() {
		t.Errorf("an invalid view on one side: %v, %v", report, err)
	}
	insert(t, b, "system.views", bson.D{{Key: "_id", Value: 7}})
	run(t, b, bson.D{{Key: "update", Value: "many"}, {Key: "updates", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 3}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: -1}}}}}},
	}}})
	report, err = compare.Compare(t.Context(), compare.Cluster(a), compare.Cluster(b), compare.Options{})
	if err != nil || report.Equal() {
		t.Errorf("a document that differs: %v, %v", report, err)
	}
}
