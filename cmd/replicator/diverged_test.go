package main

import (
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/status"
)

// TestDivergedLasts: a link that went on after a divergence is not good, also after its process was killed and while none runs, until
// the collection was copied again, or was compared without a difference.
func TestDivergedLasts(t *testing.T) {
	source, target := twoSets(t)
	address := ""
	run := func() *runLink {
		l := startLink(t, append(uris(source, target), "--listen=127.0.0.1:0", "--await=100ms", "--cut-interval=100ms", "--guard=off", "--on-divergence=report")...)
		address, _ = l.await("serving status, health and metrics")["listen"].(string)
		awaitLink(l)
		return l
	}
	shows := func(what string, parts ...string) {
		t.Helper()
		var shown [1]string
		awaitThat(t, func() bool {
			_, shown[0], _ = invoke(t, nil, "status", "--target="+target.URI())
			for _, part := range parts {
				if !strings.Contains(shown[0], part) {
					return false
				}
			}
			return true
		}, "%s: want %q in %q", what, parts, &shown)
	}
	l := run()
	for _, coll := range []string{"a", "b"} {
		insert(t, source, "shop", coll, bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
	}
	awaitThat(t, func() bool { return countDocs(t, target, "shop", "b") == 2 }, "the copy")
	for _, coll := range []string{"a", "b"} {
		tell(t, target, "shop", bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}})
		tell(t, source, "shop", bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}},
		}}}})
	}
	const open = "2 operations in shop.a, shop.b since "
	for range 2 {
		l.await("target diverged")
	}
	l.kill(failure.ErrStopped)
	l.end()
	shows("killed", open, "broken: No process runs the link")
	l = run()
	shows("started again", "attention: The target is not exact", open, "--namespace shop.a")

	again := startCommand(t, nil, "resync", "--link=test", "--namespace=shop.a", "--target="+target.URI())
	again.see("shop.a is the same as the source's again")
	if code := again.end(); code != cli.ExitOK {
		t.Errorf("resync: code %d", code)
	}
	if n := countDocs(t, target, "replicator", "diverged"); n != 1 { // the record goes in the transaction that answers the request
		t.Fatalf("%d records after the copy, want that of shop.b", n)
	}
	shows("one is copied again", "attention: The target is not exact", "1 operation in shop.b since ")
	tell(t, source, "shop", bson.D{{Key: "delete", Value: "b"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}})
	code, stdout, stderr := invoke(t, nil, append([]string{"verify", "--link=test"}, uris(source, target)[:2]...)...)
	if code != cli.ExitOK {
		t.Fatalf("verify: code %d, %s%s", code, stdout, stderr)
	}
	shows("the other one is compared", "good: Steady.")
	awaitThat(t, func() bool {
		var s status.Snapshot
		_, body := get(t, "http://"+address+"/status")
		return json.Unmarshal([]byte(body), &s) == nil && s.Diverged != nil && s.Diverged.Operations == 0
	}, "the leader knows that it was found exact")
	if n := countDocs(t, target, "replicator", "diverged"); n != 0 { // it forgets that first
		t.Fatalf("%d records of what was found exact", n)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}
