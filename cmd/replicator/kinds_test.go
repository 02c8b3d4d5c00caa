package main

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// kindsOfCollections are collections of every kind, with indexes of every kind, as the commands that make them.
var kindsOfCollections = []string{
	`{"create": "empty"}`,
	`{"create": "plain"}`,
	`{"create": "ring", "capped": true, "size": 1048576}`,
	`{"create": "few", "capped": true, "size": 1048576, "max": 7}`,
	`{"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "unique": true, "name": "by id"}}`,
	`{"create": "ages", "clusteredIndex": {"key": {"_id": 1}, "unique": true}, "expireAfterSeconds": 3600}`,
	`{"create": "collated", "collation": {"locale": "fr", "strength": 2}}`,
	`{"create": "series", "timeseries": {"timeField": "at", "metaField": "meta", "granularity": "hours"}, "expireAfterSeconds": 360000}`,
	`{"create": "checked", "validator": {"n": {"$type": "int"}}, "validationAction": "warn", "validationLevel": "moderate"}`,
	`{"create": "before", "changeStreamPreAndPostImages": {"enabled": true}}`,
	`{"create": "view", "viewOn": "plain", "pipeline": [{"$match": {"v": 1}}]}`,
	`{"create": "view of a view", "viewOn": "view", "pipeline": []}`,
	`{"create": "view of a series", "viewOn": "series", "pipeline": []}`,
	`{"create": "tuned", "storageEngine": {"wiredTiger": {"configString": "block_compressor=zlib"}}}`,
	`{"create": "a.b.c"}`,
	`{"create": "with space"}`,
	`{"create": "ünï"}`,
	`{"createIndexes": "collated", "indexes": [{"v": 2, "name": "u", "key": {"u": 1}, "unique": true}, {"v": 2, "name": "simple", "key": {"n": 1}, "collation": {"locale": "simple"}}]}`,
	`{"createIndexes": "clustered", "indexes": [{"v": 2, "name": "n", "key": {"n": 1}}]}`,
	`{"createIndexes": "plain", "indexes": [
		{"v": 2, "name": "sparse", "key": {"n": 1}, "sparse": true}, {"v": 2, "name": "hidden", "key": {"n": -1}, "hidden": true}, {"v": 2, "name": "text", "key": {"t": "text"}},
		{"v": 2, "name": "sphere", "key": {"g": "2dsphere"}}, {"v": 2, "name": "flat", "key": {"p": "2d"}}, {"v": 2, "name": "hashed", "key": {"u": "hashed"}},
		{"v": 2, "name": "wild", "key": {"w.$**": 1}}, {"v": 2, "name": "ages", "key": {"at": 1}, "expireAfterSeconds": 3600}, {"v": 2, "name": "unique", "key": {"_id": 1, "n": 1}, "unique": true},
		{"v": 2, "name": "partial", "key": {"n": 1, "u": -1}, "partialFilterExpression": {"n": {"$gt": 5}}}]}`,
}

// oddIDs are values of _id of every type.
func oddIDs() []any {
	return []any{
		int32(1), int64(2), 3.5, "", bson.NewObjectID(), true, nil, time.Unix(5, 0),
		bson.Timestamp{T: 1, I: 2},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.D{{Key: "a", Value: 1}, {Key: "b", Value: bson.D{}}},
		bson.MinKey{},
		bson.MaxKey{},
		math.NaN(), math.Inf(1), bson.JavaScript("x"), bson.Symbol("s"),
	}
}

// fillKinds writes to the collections that kindsOfCollections has made.
func fillKinds(t *testing.T, set *mongosim.Set, round int) {
	t.Helper()
	for i, id := range oddIDs() {
		change := bson.D{{Key: "$set", Value: bson.D{
			{Key: "v", Value: round},
			{Key: "t", Value: "some text"},
			{Key: "p", Value: bson.A{i, i}},
			{Key: "at", Value: time.Now()},
			{Key: "n", Value: i},
			{Key: "g", Value: bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{i, i}}}},
			{Key: "w", Value: bson.D{{Key: "x", Value: i}}},
		}}}
		tell(t, set, "shop", bson.D{{Key: "update", Value: "plain"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: change}, {Key: "upsert", Value: true}},
		}}})
	}
	for _, coll := range []string{"ring", "few", "clustered", "collated", "checked", "before", "tuned", "a.b.c", "with space", "ünï", fmt.Sprintf("made%d", round)} {
		for i := range 10 {
			id := fmt.Sprintf("%d-%d", round, i)
			insert(t, set, "shop", coll, bson.D{{Key: "_id", Value: id}, {Key: "u", Value: "É" + id}, {Key: "n", Value: "0"}})
		}
		tell(t, set, "shop", bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprintf("%d-5", round)}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: "1"}}}}},
		}}}})
	}
	at := time.Now().Truncate(time.Hour).Add(time.Duration(round) * time.Hour)
	insert(t, set, "shop", "ages", bson.D{{Key: "_id", Value: at.Add(time.Hour)}})
	bound := bson.D{{Key: "at", Value: at}, {Key: "v", Value: 1}}
	insert(t, set, "shop", "system.buckets.series", bson.D{
		{Key: "_id", Value: bson.NewObjectIDFromTimestamp(at)},
		{Key: "control", Value: bson.D{{Key: "version", Value: 1}, {Key: "min", Value: bound}, {Key: "max", Value: bound}}},
		{Key: "meta", Value: "m"},
		{Key: "data", Value: bson.D{{Key: "at", Value: bson.D{{Key: "0", Value: at}}}, {Key: "v", Value: bson.D{{Key: "0", Value: 1}}}}},
	})
}

// createKinds creates a collection of each kind, with documents.
func createKinds(t *testing.T, set *mongosim.Set) {
	t.Helper()
	for _, kind := range kindsOfCollections {
		var cmd bson.D
		if err := bson.UnmarshalExtJSON([]byte(kind), false, &cmd); err != nil {
			t.Fatalf("read %s: %v", kind, err)
		}
		tell(t, set, "shop", cmd)
	}
	fillKinds(t, set, 0)
}

// TestEveryKind: collections of every kind are copied and mirrored, are cut over, and go back without a copy; each time both sides
// are equal.
func TestEveryKind(t *testing.T) {
	from := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "a", Seed: 1, Dialect: "8.0"})
	to := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "b", Seed: 2, Dialect: "8.0"})
	createKinds(t, from)
	name, other, start := "dr", "back", "--start-at=copy"
	for round := range 3 {
		l := startLink(t, "--source="+from.URI(), "--target="+to.URI(), "--link="+name, "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0", start)
		awaitLink(l)
		fillKinds(t, from, round+1)
		said(t, cli.ExitOK, "equal: 0 differences", nil, "verify", "--source="+from.URI(), "--target="+to.URI(), "--link="+name)
		cutOver(t, from, to, name)
		if code := l.end(); code != failure.ExitResync {
			t.Fatalf("round %d: code %d\n%s", round, code, &l.log)
		}
		from, to, start = to, from, "--start-at=cutover:"+name
		name, other = other, name
	}
}

// TestEveryKindPromoted: what only the relay log has of collections of every kind is applied by a promotion, all of it and once, under
// other names, too; what the old source writes after that is listed. A link that has ended is asked for nothing.
func TestEveryKindPromoted(t *testing.T) {
	from := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "a", Seed: 1, Dialect: "8.0"})
	to := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "b", Seed: 2, Dialect: "7.0"})
	createKinds(t, from)
	sides, names := []string{"--source=" + from.URI(), "--target=" + to.URI()}, []string{"--include=shop", "--map=shop=store"}
	link := slices.Concat(sides, names, []string{"--link=dr", "--spool-dir=" + t.TempDir()})
	run := slices.Concat(link, []string{"--relay-log=64MiB", "--await=100ms", "--listen=127.0.0.1:0"})
	l := startLink(t, slices.Concat(run, []string{"--start-at=copy", "--once"})...)
	awaitLink(l)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	l = startLink(t, slices.Concat(run, []string{"--delay=1h", "--once"})...)
	l.await("state changed", "to", "steady")
	last := 3
	for round := range last {
		fillKinds(t, from, round+1)
	}
	relayed(t, from, link)
	l.kill(failure.ErrStopped)
	l.end()
	if n := countDocs(t, to, "store", fmt.Sprintf("made%d", last)); n != 0 {
		t.Fatalf("%d documents were applied though all are delayed", n)
	}
	said(t, cli.ExitOK, `exact up to (.|\n)*Restored: 5 options`, nil, slices.Concat([]string{"promote", "--source-is-gone"}, link)...)
	said(t, cli.ExitOK, "equal: 0 differences", nil, slices.Concat([]string{"verify"}, sides, names)...)
	said(t, cli.ExitOK, `dr: 0 operations after`, nil, slices.Concat([]string{"rewind"}, link)...)
	fillKinds(t, from, last+1)
	said(t, cli.ExitFailed, `"ns":"shop\.system\.buckets\.series"(.|\n)*the old source has \d+ operations`, nil, slices.Concat([]string{"rewind"}, link)...)
	for _, args := range [][]string{
		{"cut", "--wait"},
		{"pause"},
		{"throttle", "--apply-ops=5"},
		{"throttle", "--max-ops-per-second=5"},
		{"reverify"},
		{"resync", "--namespace=shop.plain"},
		{"repair", "--namespace=shop.plain", "--apply"},
		slices.Concat([]string{"verify"}, sides[:1], names),
	} {
		said(t, failure.ExitResync, `link "dr" was promoted at (.|\n)*nothing was asked of it`, nil, slices.Concat(args, sides[1:], []string{"--link=dr"})...)
	}
}
