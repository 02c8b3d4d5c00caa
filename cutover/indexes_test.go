package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/status"
)

// target is the primary of a set.
func target(t *testing.T) mongo.Caller {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 1, Moods: mongosim.GentleMoods("what is read once is compared")})
	return &simcaller.Caller{Set: set}
}

func call(t *testing.T, c mongo.Caller, cmd string) (bson.Raw, error) {
	t.Helper()
	reply, err := c.Call(t.Context(), mongo.Command{DB: "db", Body: bsongen.FromJSON(t, cmd)})
	if err == nil {
		if refused, bad := mongo.WriteErrors(reply); bad != nil || len(refused) > 0 {
			t.Fatalf("%s: %v %v", cmd, refused, bad)
		}
	}
	return reply, err
}

// cutNow is a cut as of now.
func cutNow(t *testing.T, c mongo.Caller) *checkpoint.Cut {
	t.Helper()
	reply := must.Get(call(t, c, `{"insert":"other","documents":[{}],"writeConcern":{"w":"majority"}}`))(t)
	sec, inc, ok := reply.Lookup("operationTime").TimestampOK()
	if !ok {
		t.Fatalf("no time in %s", reply)
	}
	return &checkpoint.Cut{Target: bson.Timestamp{T: sec, I: inc}, At: time.Unix(1000, 0)}
}

// unique is a unique index that is deferred.
func unique(t *testing.T, name, rest string) ddl.DeferredSpec {
	t.Helper()
	return ddl.DeferredSpec{NS: "db.c", Index: name, Fields: []string{"unique"}, Spec: bsongen.FromJSON(t, `{"v":2,"name":"`+name+`","unique":true,`+rest+`}`)}
}

// judge checks deferred indexes at a cut.
func judge(t *testing.T, c mongo.Caller, cut *checkpoint.Cut, specs ...ddl.DeferredSpec) (status.Precondition, []cutover.Violation) {
	t.Helper()
	p, found, err := cutover.Indexes(t.Context(), c, specs, cut, nil, time.Unix(1003, 0))
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != cutover.DeferredIndexes {
		t.Errorf("name %s", p.Name)
	}
	return p, found
}

// TestIndexes: each violation of a unique index is found and named, nothing else is; and a
// precondition that is not known is not met.
func TestIndexes(t *testing.T) {
	t.Parallel()
	c := target(t)
	must.Get(call(t, c, `{"insert":"c","documents":[
		{"_id":1,"a":1,"s":"x","l":[1,2],"d":[{"b":1,"c":1},{"b":2,"c":2}],"n":1.0},
		{"_id":2,"a":2,"s":"X","l":[3,3],"d":[{"b":1,"c":2}],"n":{"$numberLong":"1"}},
		{"_id":3,"a":2,"l":[2],"d":{"b":2,"c":1}},
		{"_id":4,"a":3}]}`))(t)
	cut := cutNow(t, c)
	must.Get(call(t, c, `{"insert":"c","documents":[{"_id":5,"a":1,"s":"x","later":1},{"_id":6,"later":1}]}`))(t)
	for name, tt := range map[string]struct{ rest, ids string }{
		"a field":                  {`"key":{"a":1}`, "2 3"},
		"two fields":               {`"key":{"a":1,"s":-1}`, ""},
		"text, exactly":            {`"key":{"s":1}`, "3 4"}, // both have none
		"text that is sparse":      {`"key":{"s":1},"sparse":true`, ""},
		"text by a collation":      {`"key":{"s":1},"sparse":true,"collation":{"locale":"en","strength":2}`, "?"},
		"numbers of two types":     {`"key":{"n":1},"sparse":true`, "1 2"},
		"an array":                 {`"key":{"l":1},"sparse":true`, "1 3"},
		"elements of an array":     {`"key":{"d.b":1,"d.c":1},"sparse":true`, ""},
		"one field of elements":    {`"key":{"d.b":1},"sparse":true`, "1 2 1 3"},
		"part of the documents":    {`"key":{"a":1},"partialFilterExpression":{"s":{"$exists":true}}`, ""},
		"after the cut":            {`"key":{"later":1},"sparse":true`, ""},
		"an index on text":         {`"key":{"s":"hashed"}`, "?"},
		"a numbered field":         {`"key":{"l.0":1}`, "?"},
		"a sparse pair, both":      {`"key":{"s":1,"zz":1},"sparse":true`, ""},
		"a sparse pair, some":      {`"key":{"zz":1,"a":1},"sparse":true`, "2 3"},
		"a missing field is null":  {`"key":{"none":1},"partialFilterExpression":{"_id":{"$lte":2}}`, "1 2"},
		"a collection of no index": {`"key":{"x":1},"partialFilterExpression":{"_id":9}`, ""},
	} {
		p, found := judge(t, c, cut, unique(t, "i", tt.rest))
		var ids []string
		for _, v := range found {
			if v.Namespace != "db.c" || v.Index != "i" {
				t.Errorf("%s: %+v", name, v)
			}
			ids = append(ids, v.IDs[:]...)
		}
		want := map[string]status.Standing{"": status.Met, "?": status.NotKnown}[tt.ids]
		if want == "" {
			want = status.Unmet
		}
		if got := strings.Join(ids, " "); p.Standing != want || got != strings.Trim(tt.ids, "?") || *p.AgeSeconds != 3 || (p.Next == "") != (want == status.Met) {
			t.Errorf("%s: %s %q, _ids %q; want %s %q", name, p.Standing, p.Value, got, want, tt.ids)
		}
	}
}

// TestIndexesInFailover: a failover of the target does not leave an index unchecked.
func TestIndexesInFailover(t *testing.T) {
	t.Parallel()
	c := target(t)
	must.Get(call(t, c, `{"insert":"c","documents":[{"_id":1,"a":1}]}`))(t)
	stepsDown := &storm{Caller: c, at: 1, code: servererr.PrimarySteppedDown}
	if p, _ := judge(t, stepsDown, cutNow(t, c), unique(t, "i", `"key":{"a":1}`)); p.Standing != status.Met || stepsDown.n <= stormLasts {
		t.Errorf("%s after %d commands: %s", p.Standing, stepsDown.n, p.Value)
	}
}

// TestIndexesWithoutCut: nothing is told of unique indexes as of no cut, or of one that the target
// has no history of any more, which is not asked for again and again; indexes and options that refuse no document need none.
func TestIndexesWithoutCut(t *testing.T) {
	t.Parallel()
	c := target(t)
	must.Get(call(t, c, `{"insert":"c","documents":[{"_id":1}]}`))(t)
	cut := cutNow(t, c)
	old := *cut
	old.Target.T -= 10_000
	expiring := ddl.DeferredSpec{NS: "db.c", Index: "t", Fields: []string{"expireAfterSeconds"}, Spec: bsongen.FromJSON(t, `{"key":{"t":1},"expireAfterSeconds":5}`)}
	absent := ddl.DeferredSpec{NS: "db.c", Index: "g", Absent: true, Spec: bsongen.FromJSON(t, `{"key":{"g":"2dsphere"}}`)}
	options := ddl.DeferredSpec{NS: "db.c", Fields: []string{"expireAfterSeconds"}, Spec: bsongen.FromJSON(t, `{"expireAfterSeconds":5}`)}
	for name, tt := range map[string]struct {
		cut   *checkpoint.Cut
		specs []ddl.DeferredSpec
		want  status.Standing
		value string
	}{
		"nothing":       {nil, nil, status.Met, "0 indexes and 0 collections have deferred options; none is unique"},
		"no unique one": {nil, []ddl.DeferredSpec{expiring, absent, options}, status.Met, "2 indexes and 1 collections have deferred options, 1 of the indexes have to be built; none is unique"},
		"no cut": {
			nil,
			[]ddl.DeferredSpec{expiring, unique(t, "u", `"key":{"a":1}`)},
			status.NotKnown, "2 indexes and 0 collections have deferred options; 1 of 1 unique indexes are not checked: u of db.c: there is no consistent cut",
		},
		"an old cut": {&old, []ddl.DeferredSpec{unique(t, "u", `"key":{"a":1}`)}, status.NotKnown, "1 indexes and 0 collections have deferred options; 1 of 1 unique indexes are not checked: u of db.c: "},
		"a cut":      {cut, []ddl.DeferredSpec{unique(t, "u", `"key":{"a":1}`)}, status.Met, "1 indexes and 0 collections have deferred options; no document violates one of the 1 unique indexes"},
	} {
		counted := &storm{Caller: c, at: never}
		if p, _ := judge(t, counted, tt.cut, tt.specs...); p.Standing != tt.want || !strings.HasPrefix(p.Value, tt.value) || counted.n > 4 {
			t.Errorf("%s: %s %q after %d commands", name, p.Standing, p.Value, counted.n)
		}
	}
	why := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, _, err := cutover.Indexes(ctx, c, []ddl.DeferredSpec{unique(t, "u", `"key":{"a":1}`)}, cut, nil, time.Now()); !errors.Is(err, why) {
		t.Errorf("after its context: %v", err)
	}
}

// forgetful is a target that has no history of some times.
type forgetful struct {
	mongo.Caller
	gone func(bson.Timestamp) bool
}

// Call implements mongo.Caller.
func (f forgetful) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if sec, inc, is := cmd.Body.Lookup("readConcern", "atClusterTime").TimestampOK(); is && f.gone(bson.Timestamp{T: sec, I: inc}) {
		return nil, servererr.New(servererr.SnapshotTooOld, "planted")
	}
	return f.Caller.Call(ctx, cmd)
}

// TestIndexesAtLaterCuts: an index is checked as of the link's newest cut if the target has no history of the one before any more, as when the
// check of the indexes before it took longer than that lasts; the age is that of the oldest cut as of which one was checked.
func TestIndexesAtLaterCuts(t *testing.T) {
	t.Parallel()
	c := target(t)
	must.Get(call(t, c, `{"insert":"c","documents":[{"_id":1,"a":1},{"_id":2,"a":2,"b":1},{"_id":3,"b":1}]}`))(t)
	first := cutNow(t, c)
	second := cutNow(t, c)
	second.At = first.At.Add(2 * time.Second)
	specs := []ddl.DeferredSpec{unique(t, "u", `"key":{"a":1},"sparse":true`), unique(t, "v", `"key":{"b":1},"sparse":true`)}
	for name, tt := range map[string]struct {
		goneAfter   int // reads as of the first cut that are answered
		newest      *checkpoint.Cut
		want        status.Standing
		value       string
		age         float64
		asked, here int
	}{
		"from the beginning": {0, second, status.Unmet, "documents have the same key in the unique v of db.c", 1, 1, 1},
		"from the second on": {1, second, status.Unmet, "documents have the same key in the unique v of db.c", 3, 1, 1},
		"no later one":       {1, first, status.NotKnown, "1 of 2 unique indexes are not checked: v of db.c: ", 3, 1, 0},
		"none":               {0, nil, status.NotKnown, "2 of 2 unique indexes are not checked: u of db.c: ", 3, 2, 0},
	} {
		answered, asked := 0, 0
		target := forgetful{c, func(at bson.Timestamp) bool {
			if at != first.Target || answered < tt.goneAfter {
				answered++
				return false
			}
			return true
		}}
		p, found, err := cutover.Indexes(t.Context(), target, specs, first, func(context.Context) (*checkpoint.Cut, error) {
			asked++
			return tt.newest, nil
		}, time.Unix(1003, 0))
		if err != nil || p.Standing != tt.want || !strings.Contains(p.Value, tt.value) || p.AgeSeconds == nil || *p.AgeSeconds != tt.age || asked != tt.asked || len(found) != tt.here {
			t.Errorf("%s: %+v, %v, %v, asked for a cut %d times", name, p, found, err, asked)
		}
	}
}

// TestIndexesLikeTheServer: random documents violate an index, as Indexes says, if and only if the
// server refuses to build it.
func TestIndexesLikeTheServer(t *testing.T) {
	t.Parallel()
	c := target(t)
	violated := 0
	const rounds = 150
	for seed := range uint64(rounds) {
		random := rand.New(rand.NewPCG(seed, 20)) //nolint:gosec // a schedule
		keys := []string{`{"a":1}`, `{"b.c":1}`, `{"a":1,"b.c":1}`, `{"b.c":1,"b.d":-1}`, `{"a":-1,"e":1}`}
		rest := `"key":` + keys[random.IntN(len(keys))]
		if random.IntN(2) == 0 {
			rest += `,"sparse":true`
		}
		var docs []string
		for id := range 2 + random.IntN(4) {
			docs = append(docs, randomDocument(random, id))
		}
		must.Get(call(t, c, `{"create":"c"}`))(t)
		must.Get(call(t, c, `{"insert":"c","documents":[`+strings.Join(docs, ",")+`]}`))(t)
		p, found := judge(t, c, cutNow(t, c), unique(t, "i", rest))
		_, err := call(t, c, `{"createIndexes":"c","indexes":[{"v":2,"name":"i","unique":true,`+rest+`}]}`)
		if err != nil && !servererr.IsDuplicateKey(err) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if (err != nil) != (p.Standing == status.Unmet) || (len(found) > 0) != (err != nil) {
			t.Errorf("seed %d: %s on %s: %v, but %s %q", seed, rest, docs, err, p.Standing, p.Value)
		}
		if err != nil {
			violated++
		}
		must.Get(call(t, c, `{"drop":"c"}`))(t)
	}
	if violated < rounds/5 || violated > rounds*4/5 {
		t.Errorf("%d of %d indexes are violated", violated, rounds)
	}
}

// randomDocument is one with few values, so that some are equal; only b has arrays, so that
// no index has parallel ones.
func randomDocument(random *rand.Rand, id int) string {
	value := func() string { return []string{"1", "2", "3", "4", "5", "null", `"x"`}[random.IntN(7)] }
	sub := func() string {
		out := []string{}
		for _, name := range []string{"c", "d"} {
			if random.IntN(4) > 0 {
				out = append(out, fmt.Sprintf("%q:%s", name, value()))
			}
		}
		return "{" + strings.Join(out, ",") + "}"
	}
	doc := fmt.Sprintf(`"_id":%d`, id)
	if random.IntN(4) > 0 {
		doc += `,"a":` + value()
	}
	if random.IntN(3) > 0 {
		doc += `,"e":` + value()
	}
	switch random.IntN(4) {
	case 0:
		doc += `,"b":` + sub()
	case 1:
		doc += `,"b":[` + sub() + `,` + sub() + `]`
	case 2:
		doc += `,"b":` + value()
	}
	return "{" + doc + "}"
}
