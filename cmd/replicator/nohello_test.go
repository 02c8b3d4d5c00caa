package main

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
)

// TestRunWithoutHello: a link between sets of 4.4.1, which does not have the command hello, copies, mirrors, passes from
// one process to another, and can be asked about; and its source is not taken for gone.
func TestRunWithoutHello(t *testing.T) {
	t.Parallel()
	set := func(name string, seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{Moods: oneRun, Dialect: "4.4", NoHello: true, SetName: name, Seed: seed})
	}
	source, target := set("src", 1), set("dst", 2)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	args := []string{"--source=" + source.URI(), "--target=" + target.URI(), "--link=test", "--await=100ms"}
	first := startLink(t, args...)
	awaitLink(first)
	second := startLink(t, args...)
	second.await("state changed", "to", "standby")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 2}})
	awaitCount(t, target, "shop", "a", 2)
	said(t, cli.ExitFailed, `the source is not gone: its primary .* answers`, nil, "promote", "--source="+source.URI(), "--target="+target.URI(), "--link=test")
	first.drain()
	if code := first.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &first.log)
	}
	awaitLink(second)
	tell(t, source, "shop", bson.D{{Key: "drop", Value: "a"}})
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 3}})
	awaitCount(t, target, "shop", "a", 1)
	second.drain()
	if code := second.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &second.log)
	}
}
