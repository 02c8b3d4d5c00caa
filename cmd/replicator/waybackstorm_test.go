package main

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// failsOver makes a set answer the next reads as a primary does that has just stepped down.
func failsOver(t *testing.T, set *mongosim.Set) {
	t.Helper()
	tell(t, set, "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 3}}}, {Key: "data", Value: bson.D{
		{Key: "failCommands", Value: bson.A{"find"}}, {Key: "errorCode", Value: 10107},
	}}})
}

// TestWayBackFailover: a failover of either side, while a way back is started for the first time or again, does not end the start,
// nor has it begin with other filters.
func TestWayBackFailover(t *testing.T) {
	t.Parallel()
	a, b := twoSets(t)
	l := startLink(t, append(uris(a, b), "--await=100ms", "--cut-interval=100ms", "--include=shop", "--listen=127.0.0.1:0")...)
	awaitLink(l)
	cutOver(t, a, b, "test")
	if code := l.end(); code != failure.ExitResync {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	back := []string{"--source=" + b.URI(), "--target=" + a.URI(), "--link=back", "--await=100ms", "--listen=none"}
	for _, more := range [][]string{{"--start-at=cutover"}, nil} {
		for _, set := range []*mongosim.Set{a, b} {
			failsOver(t, set)
			l := startLink(t, append(slices.Clip(back), more...)...)
			awaitLink(l)
			l.drain()
			if code := l.end(); code != cli.ExitOK {
				t.Fatalf("%v: code %d\n%s", more, code, &l.log)
			}
		}
	}
}
