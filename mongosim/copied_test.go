package mongosim

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// What a tool needs that copies a member: a version in transition, load that is
// shown, samples, and reads that resume where they were.

const versionDoc = "featureCompatibilityVersion"

func setVersion(version string) bson.D {
	return bson.D{{Key: "setFeatureCompatibilityVersion", Value: version}, {Key: "confirm", Value: true}}
}

func point(name, mode string) bson.D {
	return bson.D{{Key: "configureFailPoint", Value: name}, {Key: "mode", Value: mode}}
}

// TestVersionInTransition holds a change of the version halfway, down and up.
func TestVersionInTransition(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 21})
	p := s.Primary()
	c := dial(t, p)
	start := view(t, p).Applied
	shown := func(m *Member) string {
		for _, doc := range dump(t, m, "admin", "system.version") {
			if doc.Lookup("_id").StringValue() == versionDoc {
				return doc.String()
			}
		}
		return ""
	}
	want := func(fields string) {
		t.Helper()
		succeed(t, s.AwaitSynced(ctx))
		for _, m := range s.Members() {
			if got := shown(m); got != `{"_id": "`+versionDoc+`",`+fields+`}` {
				t.Errorf("member %d has %s, want %s", m.ID(), got, fields)
			}
		}
	}
	want(`"version": "5.0"`)
	c.run(ctx, "admin", setVersion("5.0"))
	c.run(ctx, "admin", point("failDowngrading", "alwaysOn"))
	_, err := c.call(ctx, "admin", setVersion("4.4"))
	wantCode(t, "a change that is held", err, 549181)
	between := `"version": "4.4","targetVersion": "4.4","previousVersion": "5.0"`
	want(between)
	reply := c.run(ctx, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: versionDoc, Value: 1}})
	if got := reply.Lookup(versionDoc).String(); got != "{"+between+"}" {
		t.Errorf("the parameter is %s", got)
	}
	c.run(ctx, "admin", point("failDowngrading", "off"))
	c.run(ctx, "admin", setVersion("4.4"))
	want(`"version": "4.4"`)
	c.run(ctx, "admin", point("failUpgrading", "alwaysOn"))
	_, err = c.call(ctx, "admin", setVersion("5.0"))
	wantCode(t, "a change that is held", err, 549180)
	want(`"version": "4.4","targetVersion": "5.0"`)
	c.run(ctx, "admin", point("failUpgrading", "off"))
	c.run(ctx, "admin", setVersion("5.0"))
	want(`"version": "5.0"`)
	var logged []string
	for _, e := range p.Oplog(start.TS) {
		if e.Lookup("ns").StringValue() == "admin.system.version" {
			logged = append(logged, fmt.Sprint(e.Lookup("op").StringValue(), " ", e.Lookup("o2"), " ", e.Lookup("o", "targetVersion")))
		}
	}
	id := `{"_id": "` + versionDoc + `"}`
	line := func(target string) string { return "u " + id + " " + target }
	if diff := cmp.Diff([]string{line(`"4.4"`), line(`"4.4"`), line(""), line(`"5.0"`), line(`"5.0"`), line("")}, logged); diff != "" {
		t.Error(diff)
	}
	succeed(t, p.Stop(ctx))
	succeed(t, p.Start())
	want(`"version": "5.0"`)
}

// TestPressure shows load, also of a member that was restarted.
func TestPressure(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Seed: 22})
	m := s.Primary()
	status := func() string {
		r := dial(t, m).run(ctx, "admin", bson.D{{Key: "serverStatus", Value: 1}})
		cache := r.Lookup("wiredTiger", "cache").Document()
		part := func(name string) float64 {
			return float64(cache.Lookup(name).AsInt64()) / float64(cache.Lookup("maximum bytes configured").AsInt64())
		}
		return fmt.Sprintf("%v %v %.2f %.2f %v", r.Lookup("flowControl", "enabled"), r.Lookup("flowControl", "isLagged"),
			part("bytes currently in the cache"), part("tracked dirty bytes in the cache"),
			r.Lookup("wiredTiger", "concurrentTransactions", "write", "available"))
	}
	const idle = `false false 0.00 0.00 {"$numberInt":"128"}`
	if got := status(); got != idle {
		t.Errorf("at first %s", got)
	}
	m.SetPressure(Pressure{Lagged: true, CacheUsed: 0.97, CacheDirty: 0.25, WriteTickets: 128})
	succeed(t, m.Stop(ctx))
	succeed(t, m.Start())
	must[*Member](t)(s.AwaitPrimary(ctx))
	if got := status(); got != `true true 0.97 0.25 {"$numberInt":"0"}` {
		t.Errorf("under pressure %s", got)
	}
	m.SetPressure(Pressure{})
	if got := status(); got != idle {
		t.Errorf("afterwards %s", got)
	}
}

// TestSampleBySeed: samples have no document twice, and follow from the seed.
func TestSampleBySeed(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	var runs [3]string
	for i, seed := range []int64{23, 23, 24} {
		func() {
			s := quick(t, Options{Seed: seed})
			defer s.Close()
			fill(t, s.Primary(), 40)
			c := dial(t, s.Primary())
			for _, match := range []bson.D{nil, {{Key: "_id", Value: bson.D{{Key: "$gte", Value: 10}}}}} {
				pipeline := bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: 12}}}}}
				if match != nil {
					pipeline = slices.Insert(pipeline, 0, any(bson.D{{Key: "$match", Value: match}}))
				}
				docs := batch(t, c.run(ctx, "app", bson.D{
					{Key: "aggregate", Value: "c"}, {Key: "pipeline", Value: pipeline}, {Key: "cursor", Value: bson.D{}},
				}), "firstBatch")
				found := ids(docs)
				runs[i] += fmt.Sprintln(found)
				slices.Sort(found)
				if len(slices.Compact(found)) != 12 {
					t.Errorf("a sample of 12: %v", found)
				}
			}
			_, err := c.call(ctx, "app", bson.D{
				{Key: "aggregate", Value: "c"},
				{Key: "cursor", Value: bson.D{}},
				{Key: "pipeline", Value: bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: -1}}}}}},
			})
			wantCode(t, "a negative size", err, 28747)
		}()
	}
	if runs[0] != runs[1] {
		t.Errorf("seed 23 gave\n%sand\n%s", runs[0], runs[1])
	}
	if runs[0] == runs[2] {
		t.Errorf("seeds 23 and 24 gave both\n%s", runs[0])
	}
}

// TestResumedByUUID copies a collection by its UUID, in parts, while it is renamed
// and a document at the very place is removed.
func TestResumedByUUID(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Seed: 25})
	fill(t, s.Primary(), 10)
	c := dial(t, s.Primary())
	list := batch(t, c.run(ctx, "app", bson.D{{Key: "listCollections", Value: 1}}), "firstBatch")
	uuid := list[0].Lookup("info", "uuid")
	read := func(after bson.RawValue) (bson.Raw, error) {
		cmd := bson.D{
			{Key: "find", Value: uuid},
			{Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}},
			{Key: "showRecordId", Value: true},
			{Key: "batchSize", Value: 4},
			{Key: "$_requestResumeToken", Value: true},
		}
		if !after.IsZero() {
			cmd = append(cmd, bson.E{Key: "$_resumeAfter", Value: after})
		}
		return c.call(ctx, "app", cmd)
	}
	first := must[bson.Raw](t)(read(bson.RawValue{}))
	var last int64
	for _, doc := range batch(t, first, "firstBatch") {
		id := doc.Lookup("$recordId").Int64()
		if id <= last {
			t.Errorf("record %d comes behind %d", id, last)
		}
		last = id
	}
	token := first.Lookup("cursor", "postBatchResumeToken")
	if got := token.Document().Lookup("$recordId").Int64(); got != last {
		t.Errorf("the token is %s, the last record %d", token, last)
	}
	// A cursor does not survive a rename, the token does.
	c.run(ctx, "admin", bson.D{{Key: "renameCollection", Value: "app.c"}, {Key: "to", Value: "app.d"}})
	_, err := c.call(ctx, "app", bson.D{{Key: "getMore", Value: first.Lookup("cursor", "id").Int64()}, {Key: "collection", Value: "c"}})
	wantCode(t, "go on behind a rename", err, servererr.QueryPlanKilled)
	second := must[bson.Raw](t)(read(token))
	if got := second.Lookup("cursor", "ns").StringValue(); got != "app.d" {
		t.Errorf("the cursor is of %s", got)
	}
	docs := batch(t, second, "firstBatch")
	if got := docs[0].Lookup("$recordId").Int64(); got != last+1 {
		t.Errorf("it goes on with record %d behind %d", got, last)
	}
	// By _id, with record ids.
	in := bson.A{docs[3].Lookup("_id"), docs[1].Lookup("_id"), "none"}
	some := batch(t, c.run(ctx, "app", bson.D{
		{Key: "find", Value: uuid},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: in}}}}},
		{Key: "showRecordId", Value: true},
	}), "firstBatch")
	if len(some) != 2 || some[0].Lookup("$recordId").Int64() != last+2 || some[1].Lookup("$recordId").Int64() != last+4 {
		t.Errorf("by _id: %s", some)
	}
	c.run(ctx, "app", bson.D{{Key: "delete", Value: "d"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: docs[3].Lookup("_id")}}}, {Key: "limit", Value: 1}},
	}}})
	_, err = read(second.Lookup("cursor", "postBatchResumeToken"))
	wantCode(t, "go on behind a record that is gone", err, servererr.KeyNotFound)
	c.run(ctx, "app", bson.D{{Key: "drop", Value: "d"}})
	_, err = read(token)
	wantCode(t, "read a collection that was dropped", err, servererr.NamespaceNotFound)
}

// TestUnfinishedBuild plays an index build that has started: it is listed as
// such, until it is committed.
func TestUnfinishedBuild(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	m := playedSet(t, false).Member(0)
	c := dial(t, m)
	build := bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}
	step := func(seconds uint32, name string) {
		succeed(t, m.Play([]bson.Raw{entryAt(seconds, 3, bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: "db.$cmd"},
			{Key: "ui", Value: bson.Binary{Subtype: 4, Data: playedID[:]}},
			{Key: "o", Value: bson.D{
				{Key: name, Value: "c"},
				{Key: "indexBuildUUID", Value: build},
				{Key: "indexes", Value: bson.A{bson.D{
					{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "y", Value: int32(1)}}}, {Key: "name", Value: "y_1"},
				}}},
			}},
		})}))
	}
	last := func() bson.Raw {
		docs, _ := batchOf(t, must[bson.Raw](t)(c.call(ctx, "db", bson.D{{Key: "listIndexes", Value: "c"}, {Key: "includeBuildUUIDs", Value: true}})), "firstBatch")
		return docs[len(docs)-1]
	}
	step(1, "startIndexBuild")
	if doc := last(); doc.Lookup("spec", "name").StringValue() != "y_1" || !doc.Lookup("buildUUID").Equal(must[bson.RawValue](t)(asValue(build))) {
		t.Errorf("under way: %s", doc)
	}
	stats := c.run(ctx, "db", bson.D{{Key: "collStats", Value: "c"}})
	if got := stats.Lookup("indexBuilds").String(); got != `["y_1"]` {
		t.Errorf("builds under way: %s", got)
	}
	step(2, "commitIndexBuild")
	if doc := last(); doc.Lookup("name").StringValue() != "y_1" {
		t.Errorf("committed: %s", doc)
	}
}

func asValue(v any) (bson.RawValue, error) {
	kind, data, err := bson.MarshalValue(v)
	return bson.RawValue{Type: kind, Value: data}, err
}
