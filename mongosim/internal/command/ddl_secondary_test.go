package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// follower is a second store that gets what a member logs, as a secondary does.
type follower struct {
	primary *member
	store   *storage.Store
	applier *replay.Applier
	applied int
}

func (m *member) follow(t testing.TB) *follower {
	t.Helper()
	f := &follower{primary: m, store: storage.New(storage.Options{})}
	var err error
	f.applier, err = replay.New(f.store, replay.Options{TrimCapped: m.Config.Dialect.TrimsCapped()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.applier.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// difference applies new entries, and returns how the two stores differ.
func (f *follower) difference(t testing.TB) string {
	t.Helper()
	entries := f.primary.entries(t)
	if _, err := f.applier.Apply(entries[f.applied:]); err != nil {
		return err.Error()
	}
	f.applied = len(entries)
	return cmp.Diff(contents(t, f.primary.store), contents(t, f.store))
}

// contents prints the catalog and the documents of a store.
func contents(t testing.TB, store *storage.Store) (lines []string) {
	t.Helper()
	err := store.Read(func(r *storage.Reader) error {
		for _, coll := range r.View(bson.Timestamp{}).Collections("") {
			if coll.NS.DB() == "local" {
				continue
			}
			lines = append(lines, fmt.Sprintf("%s %s %s capped %d %d", coll.NS, coll.UUID, coll.Options, coll.CappedBytes, coll.CappedDocs))
			for _, index := range coll.Indexes {
				lines = append(lines, fmt.Sprintf("%s index %s %s %t", coll.NS, index.Name, index.Spec, index.Building))
			}
			for record := range coll.Natural(0) {
				lines = append(lines, fmt.Sprintf("%s holds %s", coll.NS, record.Doc))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(lines, func(a, b string) int {
		nsA, _, _ := strings.Cut(a, " ")
		nsB, _, _ := strings.Cut(b, " ")
		return strings.Compare(nsA, nsB)
	})
	return lines
}

// drawDDL draws a command, right or wrong.
func drawDDL(t *rapid.T) bson.D {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	chance := func(percent int, label string) bool { return rapid.IntRange(1, 100).Draw(t, label) <= percent }
	db := pick("db", "d", "d", "d", "d", "d", "e")
	name := pick("name", "a", "a", "a", "a", "b", "b", "c", "v", "ts", "ts")
	cmd := func(fields ...any) bson.D { return append(obj(fields...), bson.E{Key: "$db", Value: db}) }
	command := pick("command", "create", "create", "drop", "collMod", "collMod", "collMod", "collMod", "convertToCapped", "emptycapped",
		"rename", "createIndexes", "createIndexes", "createIndexes", "dropIndexes", "insert", "insert", "insert", "delete", "view", "timeseries")
	if command == "drop" && chance(20, "all") {
		command = "dropDatabase"
	}
	switch command {
	case "create":
		return append(drawCreate(t, name), bson.E{Key: "$db", Value: db})
	case "drop":
		return cmd("drop", name)
	case "collMod":
		return append(append(obj("collMod", name), drawMods(t)...), bson.E{Key: "$db", Value: db})
	case "convertToCapped":
		return cmd("convertToCapped", name, "size", rapid.IntRange(1, 700).Draw(t, "size"))
	case "emptycapped":
		return cmd("emptycapped", name)
	case "rename":
		from, to := db+"."+name, pick("todb", "d", "d", "e")+"."+pick("to", "a", "b", "c", "v", "w")
		db = "admin"
		return cmd("renameCollection", from, "to", to, "dropTarget", chance(60, "dropTarget"), "stayTemp", chance(20, "stayTemp"))
	case "createIndexes":
		specs := bson.A{}
		for range rapid.IntRange(1, 2).Draw(t, "n") {
			specs = append(specs, drawIndex(t))
		}
		return cmd("createIndexes", name, "indexes", specs)
	case "dropIndexes":
		index := rapid.SampledFrom([]any{"*", "x_1", "y_1", "sub", bson.A{"x_1", "y_1"}, bson.A{}, obj("x", 1), obj("x", int64(1)), obj("y", -1)}).Draw(t, "index")
		return cmd("dropIndexes", name, "index", index)
	case "delete":
		return cmd("delete", name, "deletes", bson.A{obj("q", obj("x", rapid.IntRange(0, 2).Draw(t, "x")), "limit", rapid.IntRange(0, 1).Draw(t, "limit"))})
	case "dropDatabase":
		return cmd("dropDatabase", 1)
	case "view":
		c := obj("create", pick("view", "v", "w", "a"), "viewOn", pick("on", "a", "v", "w", "b"))
		if chance(50, "pipeline") {
			c = append(c, bson.E{Key: "pipeline", Value: bson.A{obj("$match", obj("x", 1))}})
		}
		if chance(20, "collation") {
			c = append(c, bson.E{Key: "collation", Value: drawCollation(t)})
		}
		return append(c, bson.E{Key: "$db", Value: db})
	case "timeseries":
		c := obj("create", "ts", "timeseries", obj("timeField", "t", "metaField", "m"))
		if chance(50, "expires") {
			c = append(c, bson.E{Key: "expireAfterSeconds", Value: rapid.SampledFrom([]any{10, int64(1 << 40), 2.5}).Draw(t, "expireAfterSeconds")})
		}
		return append(c, bson.E{Key: "$db", Value: db})
	default:
		return cmd("insert", name, "documents", drawDocuments(t), "ordered", chance(50, "ordered"))
	}
}

func drawCreate(t *rapid.T, name string) bson.D {
	chance := func(percent int, label string) bool { return rapid.IntRange(1, 100).Draw(t, label) <= percent }
	c := obj("create", name)
	clustered := chance(15, "clustered")
	if !clustered && chance(40, "capped") {
		c = append(c, obj("capped", true, "size", rapid.IntRange(1, 700).Draw(t, "size"))...)
		if chance(50, "max") {
			c = append(c, bson.E{Key: "max", Value: rapid.IntRange(0, 4).Draw(t, "n")})
		}
	}
	if chance(30, "collation") {
		c = append(c, bson.E{Key: "collation", Value: drawCollation(t)})
	}
	if chance(30, "validator") {
		c = append(c, drawValidation(t)...)
	}
	if chance(20, "images") {
		c = append(c, drawImages(t)...)
	}
	if clustered {
		c = append(c, bson.E{Key: "clusteredIndex", Value: obj("key", obj("_id", 1), "unique", true)})
		if chance(50, "expires") {
			c = append(c, bson.E{Key: "expireAfterSeconds", Value: rapid.SampledFrom([]any{10, int64(1 << 40), 2.5, -1}).Draw(t, "expireAfterSeconds")})
		}
	}
	rapid.SampledFrom([]func(){
		func() {},
		func() {},
		func() {},
		func() { c = append(c, bson.E{Key: "autoIndexId", Value: chance(90, "autoIndexId")}) },
		func() { c = append(c, bson.E{Key: "temp", Value: chance(10, "temp")}) },
		func() { c = append(c, bson.E{Key: "flags", Value: 1}) },
		func() {
			c = append(c, bson.E{Key: "idIndex", Value: obj("v", 2, "key", obj("_id", 1), "name", "_id_")})
		},
		func() {
			c = append(c, bson.E{Key: "indexOptionDefaults", Value: obj("storageEngine", obj("wiredTiger", obj()))})
		},
	}).Draw(t, "more")()
	return c
}

func drawDocuments(t *rapid.T) bson.A {
	chance := func(percent int, label string) bool { return rapid.IntRange(1, 100).Draw(t, label) <= percent }
	docs := bson.A{}
	for range rapid.IntRange(1, 4).Draw(t, "n") {
		doc := obj("x", rapid.SampledFrom([]any{0, 1, int64(1), "a", "A", bson.A{1, 2}, nil}).Draw(t, "x"),
			"y", rapid.SampledFrom([]any{0, 1, bson.A{1}}).Draw(t, "y"), "t", bson.DateTime(1e12), "pad", strings.Repeat("p", rapid.IntRange(0, 200).Draw(t, "pad")))
		if chance(60, "id") {
			doc = append(obj("_id", rapid.SampledFrom([]any{1, 2, 3, 4.0, "a", "A"}).Draw(t, "_id")), doc...)
		} else {
			doc = append(obj("_id", bson.ObjectID(rapid.SliceOfN(rapid.Byte(), 12, 12).Draw(t, "oid"))), doc...)
		}
		docs = append(docs, doc)
	}
	return docs
}

func drawCollation(t *rapid.T) bson.D {
	return rapid.SampledFrom([]bson.D{obj("locale", "en", "strength", 2), obj("locale", "simple"), obj("locale", "fr")}).Draw(t, "collation")
}

func drawValidation(t *rapid.T) bson.D {
	return rapid.SampledFrom([]bson.D{
		obj("validator", obj("x", obj("$exists", true))),
		obj("validator", obj()),
		obj("validator", obj("x", 1), "validationLevel", "moderate"),
		obj("validationAction", "warn"),
		obj("validationLevel", "off", "validationAction", "error"),
		obj("validator", obj("$or", bson.A{})),
	}).Draw(t, "validation")
}

func drawImages(t *rapid.T) bson.D {
	return rapid.SampledFrom([]bson.D{
		obj("recordPreImages", true),
		obj("recordPreImages", false),
		obj("changeStreamPreAndPostImages", obj("enabled", true)),
		obj("changeStreamPreAndPostImages", obj("enabled", false)),
	}).Draw(t, "images")
}

func drawMods(t *rapid.T) bson.D {
	switch rapid.IntRange(0, 6).Draw(t, "mod") {
	case 0, 1:
		return drawValidation(t)
	case 2:
		return drawImages(t)
	case 3:
		return rapid.SampledFrom([]bson.D{
			{},
			obj("viewOn", "b", "pipeline", bson.A{}),
			obj("viewOn", "b"),
			obj("pipeline", bson.A{}),
			obj("expireAfterSeconds", 77),
			obj("expireAfterSeconds", "off"),
			obj("timeseries", obj("granularity", "minutes")),
			obj("timeseries", obj("granularity", "hours")),
			obj("cappedSize", 1000),
			obj("cappedMax", 2),
		}).Draw(t, "mods")
	}
	index := obj("name", rapid.SampledFrom([]string{"x_1", "y_1", "sub", "_id_"}).Draw(t, "name"))
	if rapid.Bool().Draw(t, "byKey") {
		index = obj("keyPattern", rapid.SampledFrom([]bson.D{obj("x", 1), obj("y", -1), obj("_id", 1)}).Draw(t, "key"))
	}
	for _, field := range []struct {
		name   string
		values []any
	}{{"expireAfterSeconds", []any{0, int64(5), 2.5, 99}}, {"hidden", []any{true, false}}, {"prepareUnique", []any{true, false}}, {"unique", []any{true}}} {
		if rapid.IntRange(0, 2).Draw(t, field.name) == 0 {
			index = append(index, bson.E{Key: field.name, Value: rapid.SampledFrom(field.values).Draw(t, "value")})
		}
	}
	return obj("index", index)
}

func drawIndex(t *rapid.T) bson.D {
	spec := obj(
		"key", rapid.SampledFrom([]bson.D{
			obj("x", 1), obj("x", 1.0), obj("y", -1), obj("x", 1, "y", 1), obj("x", "hashed"), obj("x", "text", "y", "text"),
			obj("y", "2dsphere"), obj("w.$**", 1), obj("$**", 1), obj("_id", 1), obj("y", "2d"),
		}).Draw(t, "key"),
		"name", rapid.SampledFrom([]string{"x_1", "y_1", "sub"}).Draw(t, "name"))
	for _, option := range rapid.SliceOfNDistinct(rapid.SampledFrom([]bson.E{
		{Key: "unique", Value: true},
		{Key: "unique", Value: false},
		{Key: "sparse", Value: true},
		{Key: "sparse", Value: 1},
		{Key: "expireAfterSeconds", Value: 2.7},
		{Key: "expireAfterSeconds", Value: int64(100)},
		{Key: "hidden", Value: true},
		{Key: "hidden", Value: false},
		{Key: "background", Value: true},
		{Key: "collation", Value: obj("locale", "en", "strength", 1)},
		{Key: "collation", Value: obj("locale", "simple")},
		{Key: "partialFilterExpression", Value: obj("x", obj("$gt", 0))},
		{Key: "wildcardProjection", Value: obj("x", 1)},
		{Key: "weights", Value: obj("x", 3)},
		{Key: "prepareUnique", Value: true},
		{Key: "v", Value: 1},
		{Key: "clustered", Value: true},
		{Key: "bits", Value: 20},
	}), 0, 2, func(e bson.E) string { return e.Key }).Draw(t, "options") {
		spec = append(spec, option)
	}
	return spec
}

// TestSecondariesHaveTheSameCatalog runs commands at random and expects a
// secondary to come to the same collections, indexes and documents from the log;
// what fails for no reason of its own is an error too.
func TestSecondariesHaveTheSameCatalog(t *testing.T) {
	for _, version := range []string{"4.4.29", "5.0.7", "6.0.5", "7.0.2", "8.0.0"} {
		t.Run(version, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				m := newMember(t, version)
				defer m.Close()
				second := m.follow(t)
				m.run(t, `{insert: "a", documents: [{_id: 0, x: 5, y: 5}], $db: "d"}`)
				for range rapid.IntRange(1, 25).Draw(rt, "commands") {
					cmd := drawDDL(rt)
					before := len(m.entries(t))
					ctx, stop := context.WithTimeout(t.Context(), time.Minute)
					reply := m.CallOn(ctx, m.conn, marshal(t, cmd))
					stop()
					if slices.Contains([]servererr.Code{servererr.InternalError, servererr.UnknownError, servererr.MaxTimeMSExpired}, codeOf(reply)) {
						rt.Fatalf("%s: %s", extJSON(t, cmd), reply)
					}
					if diff := second.difference(t); diff != "" {
						rt.Fatalf("%s\n%s\n%s", extJSON(t, cmd), m.entries(t)[before:], diff)
					}
				}
			})
		})
	}
}

// codeOf is the error of a reply, zero for none.
func codeOf(reply bson.Raw) servererr.Code {
	code, _ := reply.Lookup("code").AsInt64OK()
	return servererr.Code(code)
}
