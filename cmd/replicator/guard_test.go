package main

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
)

// A foreign write to the target is in the log, the status and the metadata; with --guard=stop a link does
// not start until it is cleared.
func TestGuard(t *testing.T) {
	source, target := twoSets(t)
	environ := []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test"}
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)
	said(t, cli.ExitOK, `^No namespace has foreign writes that are not dealt with; 0 were found`, environ, "guard")
	insert(t, target, "shop", "a", bson.D{{Key: "_id", Value: "mine"}})
	l.await(`foreign write to the target`)
	const list = `(?s)^shop\.a: 1, from .* to .*\nThe newest:\n  insert of shop\.a \{_id: "mine"\} at \d{4}-.*Z`
	said(t, cli.ExitOK, list, environ, "guard")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	stop := append(uris(source, target), "--await=100ms", "--guard=stop")
	l = startLink(t, stop...)
	if code := l.end(); code != 7 {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	said(t, cli.ExitOK, `"namespace":"shop.a"`, environ, "guard", "--json")
	const told = "Something else has written to shop.a, and that was not dealt with: replicator guard --link test … has the writes"
	said(t, cli.ExitFailed, `No process runs the link(.|\n)*`+told, environ, "status")
	// What an earlier release found in collections that it did not list can be cleared as well.
	tell(t, target, "replicator", bson.D{{Key: "update", Value: "guard"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "test"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "more", Value: int64(3)}, {Key: "moreLast", Value: time.Now().Add(time.Second)}}}}},
	}}}})
	// A collection compared before the write, which no link has marked, is marked by clearing.
	tell(t, target, "replicator", bson.D{{Key: "update", Value: "verified"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "test/shop.a"}}}, {Key: "u", Value: bson.D{{Key: "ns", Value: "shop.a"}, {Key: "joined", Value: int64(1)}}}, {Key: "upsert", Value: true},
	}}}})
	const more = `(?s)^shop\.a: 1, from .* to .*\n3 more to other namespaces\nThe newest:\n  insert of shop\.a \{_id: "mine"\}`
	said(t, cli.ExitOK, more, environ, "guard", "--clear")
	marked := bson.D{{Key: "count", Value: "verified"}, {Key: "query", Value: bson.D{{Key: "_id", Value: "test/shop.a"}, {Key: "mark.why", Value: bson.D{{Key: "$exists", Value: true}}}}}}
	if n, _ := tell(t, target, "replicator", marked).Lookup("n").AsInt64OK(); n != 1 {
		t.Error("what was cleared is not marked")
	}
	said(t, cli.ExitOK, `^No namespace has foreign writes that are not dealt with; 1 were found`, environ, "guard")
	if _, text, _ := invoke(t, environ, "status"); strings.Contains(text, "Something else") {
		t.Error(text)
	}
	l = startLink(t, stop...)
	awaitLink(l)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 2}})
	awaitCount(t, target, "shop", "a", 3)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}
