package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// seriesAge is the expireAfterSeconds of the time series shop.s, -1 for none.
func seriesAge(t *testing.T, set *mongosim.Set) int64 {
	t.Helper()
	reply := tell(t, set, "shop", bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: "s"}}}})
	batch, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	if age, ok := batch.Index(0).Document().Lookup("options", "expireAfterSeconds").AsInt64OK(); ok {
		return age
	}
	return -1
}

// TestSeriesWayBack: the measurements of a time series expire on the side that applications write to, and on the other side do not, when a
// link goes back as well.
func TestSeriesWayBack(t *testing.T) {
	a := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "a", Seed: 1, Dialect: "7.0"})
	b := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "b", Seed: 2, Dialect: "7.0"})
	tell(t, a, "shop", bson.D{
		{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}, {Key: "metaField", Value: "m"}}}, {Key: "expireAfterSeconds", Value: 3600},
	})
	from, to, name, start := a, b, "dr", "--start-at=copy"
	for round := range 3 {
		l := startLink(t, "--source="+from.URI(), "--target="+to.URI(), "--link="+name, "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0", start)
		awaitLink(l)
		if x, y := seriesAge(t, from), seriesAge(t, to); x != 3600 || y != -1 {
			t.Errorf("round %d: measurements expire after %d and %d s", round, x, y)
		}
		insert(t, from, "shop", "c", bson.D{{Key: "_id", Value: round}})
		said(t, cli.ExitOK, `equal`, nil, "verify", "--source="+from.URI(), "--target="+to.URI(), "--link="+name)
		cutOver(t, from, to, name)
		if code := l.end(); code != failure.ExitResync {
			t.Fatalf("round %d: code %d\n%s", round, code, &l.log)
		}
		if x := seriesAge(t, to); x != 3600 {
			t.Errorf("round %d: measurements expire after %d s on the new side", round, x)
		}
		start, from, to = "--start-at=cutover:"+name, to, from
		name = map[string]string{"dr": "back", "back": "dr"}[name]
	}
}
