package main

import (
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/status"
)

// verifiedOf returns what the running process says of its verification, nil if it says nothing.
func verifiedOf(t *testing.T, target *mongosim.Set) *status.Verified {
	t.Helper()
	var all []struct{ Status *status.Snapshot }
	_, stdout, _ := invoke(t, nil, "status", "--json", "--target="+target.URI(), "--link=test")
	for line := range strings.Lines(stdout) {
		var one struct{ Status *status.Snapshot }
		must.Succeed(t, json.Unmarshal([]byte(line), &one))
		all = append(all, one)
	}
	if len(all) != 1 || all[0].Status == nil {
		return nil
	}
	return all[0].Status.Verified
}

// TestVerifyContinuous: a link verifies itself. It says as of when, names a difference once, and says
// when it is gone; what something else writes makes a collection unverified, until it is compared again.
// A cutover is ready for it, also by the metadata alone.
func TestVerifyContinuous(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0",
		"--verify=continuous", "--verify-budget=100%", "--verify-every=1s")...)
	awaitLink(l)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
	is := func(what string, ok func(v *status.Verified) bool) {
		t.Helper()
		var v *status.Verified
		awaitThat(t, func() bool { v = verifiedOf(t, target); return v != nil && ok(v) }, "%s: %+v", what, &v)
	}
	is("verified", func(v *status.Verified) bool {
		return v.At != nil && v.Differences == 0 && v.Verified == 1 && v.Continuous && v.Budget == "100%" && v.LastRound != nil
	})
	met := func(standing status.Standing) func() bool {
		return func() bool {
			_, stdout, _ := invoke(t, nil, "cutover", "--dry-run", "--json", "--source="+source.URI(), "--target="+target.URI(), "--link=test")
			var r struct{ Preconditions []status.Precondition }
			must.Succeed(t, json.Unmarshal([]byte(stdout), &r))
			for _, p := range r.Preconditions {
				if p.Name == "verified" {
					return p.Standing == standing && (p.AgeSeconds != nil || standing != status.Met)
				}
			}
			return false
		}
	}
	awaitThat(t, met(status.Met), "a cutover does not know that the link is verified")

	insert(t, target, "shop", "orders", bson.D{{Key: "_id", Value: 3}})
	e := l.await("a collection is not verified any more")
	if e["ns"] != "shop.orders" {
		t.Errorf("%v", e)
	}
	e = l.await("the target differs from the source")
	if e["ns"] != "shop.orders" || e["kind"] != "extra" || e["id"] != `{"$numberInt":"3"}` {
		t.Errorf("%v", e)
	}
	is("different", func(v *status.Verified) bool {
		return v.Differences == 1 && v.Kinds["extra"] == 1 && v.Differing[0].Namespace == "shop.orders"
	})
	awaitThat(t, met(status.Unmet), "a cutover does not know that the link differs")
	tell(t, target, "shop", bson.D{{Key: "delete", Value: "orders"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 3}}}, {Key: "limit", Value: 1}},
	}}})
	l.await("differences between source and target are gone")
	is("gone", func(v *status.Verified) bool { return v.At != nil && v.Differences == 0 })
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	if n := strings.Count(l.log.String(), "the target differs from the source"); n != 1 {
		t.Errorf("the difference was announced %d times", n)
	}
	awaitThat(t, met(status.Met), "the metadata do not say that the link was verified")
}

// TestReverify: what a link is asked to compare again is compared at once, not when the next round is due.
func TestReverify(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0", "--guard=off",
		"--verify=continuous", "--verify-budget=100%", "--verify-every=24h")...)
	awaitLink(l)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}})
	var v *status.Verified
	ask := func(args ...string) {
		t.Helper()
		said(t, cli.ExitOK, ` is compared next, `, nil, append([]string{"reverify", "--target=" + target.URI(), "--link=test"}, args...)...)
	}
	ask()
	awaitThat(t, func() bool { v = verifiedOf(t, target); return v != nil && v.At != nil && v.Verified == 1 }, "verified: %+v", &v)
	insert(t, target, "shop", "orders", bson.D{{Key: "_id", Value: 3}})
	ask("--namespace=shop.orders")
	if e := l.await("the target differs from the source"); e["ns"] != "shop.orders" || e["kind"] != "extra" {
		t.Errorf("%v", e)
	}
	said(t, cli.ExitUsage, `--namespace: "shop" is not of the form DB.COLLECTION`, nil, "reverify", "--target="+target.URI(), "--link=test", "--namespace=shop")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}
