package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/standing"
)

// Two clusters without a link: equal, different, and what cannot be checked have codes of their
// own, and what differs is named.
func TestVerify(t *testing.T) {
	source, target := twoSets(t)
	on := append([]string{"verify"}, uris(source, target)[:2]...)
	for _, set := range []struct{ n int32 }{{0}, {1}} {
		to := source
		if set.n == 1 {
			to = target
		}
		insert(t, to, "shop", "orders", bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: "secret"}}, bson.D{{Key: "_id", Value: 2 + set.n}})
		insert(t, to, "shop", "items", bson.D{{Key: "_id", Value: 1}, {Key: "price", Value: bson.D{{Key: "eur", Value: 100 + set.n}}}})
		insert(t, to, "shop", "same", bson.D{{Key: "_id", Value: 1}})
	}
	if code, stdout, stderr := invoke(t, nil, append(on, "--include=shop.same")...); code != cli.ExitOK || !strings.Contains(stdout, "equal: 0 differences, 1 documents equal, 1 collections") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := invoke(t, nil, on...)
	for _, want := range []string{
		`shop.orders: missing _id {"$numberInt":"2"}`, `shop.orders: extra _id {"$numberInt":"3"}`,
		`shop.items: differs _id {"$numberInt":"1"}; price.eur: another int`, "different: 3 differences, 2 documents equal, 3 collections",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if code != cli.ExitFailed || strings.Contains(stdout, "secret") || strings.Contains(stdout, "101") || !strings.Contains(stderr, "source and target differ") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, _ = invoke(t, nil, append(on, "--json", "--show-values")...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != cli.ExitFailed || len(lines) != 4 || !strings.Contains(stdout, `"targetValue":{"$numberInt":"101"}`) {
		t.Fatalf("code %d, %s", code, stdout)
	}
	var d verify.Difference
	must.Succeed(t, json.Unmarshal([]byte(lines[0]), &d))
	if id := bson.Raw(d.IDBSON).Lookup("_id"); d.NS == "" || id.Type != bson.TypeInt32 {
		t.Errorf("%s", lines[0])
	}
	var end summaryLine
	must.Succeed(t, json.Unmarshal([]byte(lines[3]), &end))
	if end.Kind != "summary" || end.Result != "different" || end.Differences != 3 || end.Total.EqualDocs != 2 || len(end.Collections) != 3 {
		t.Errorf("%s", lines[3])
	}
	for _, bad := range []string{"--sample=0%", "--sample=200%", "--memory=1MiB", "--map=a", "--verify-workers=0", "--resume", "--max-bytes-per-second=5"} {
		if code, _, stderr := invoke(t, nil, append(on, bad)...); code != cli.ExitUsage {
			t.Errorf("%s: code %d, %s", bad, code, stderr)
		}
	}
	if code, stdout, _ := invoke(t, nil, append(on, "--sample=1%")...); code != cli.ExitFailed || !strings.Contains(stdout, "in a sample of 1% of each large collection: different") {
		t.Errorf("code %d, %s", code, stdout)
	}
	gone := []string{"verify", "--source=mongodb://127.0.0.1:1/?replicaSet=x", "--target=" + target.URI(), "--selection-timeout=10ms"}
	if code, _, stderr := invoke(t, nil, gone...); code != cli.ExitConnect {
		t.Errorf("code %d, %s", code, stderr)
	}
}

// A link is compared at its cuts, while it runs; its filters have to be given.
func TestVerifyLink(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--exclude=shop.log")...)
	awaitLink(l)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
	insert(t, source, "shop", "log", bson.D{{Key: "_id", Value: 1}})
	tell(t, source, "shop", bson.D{{Key: "createIndexes", Value: "orders"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"}, {Key: "expireAfterSeconds", Value: 60}},
	}}})
	on := append([]string{"verify"}, uris(source, target)[:3]...)
	code, stdout, stderr := invoke(t, nil, append(on, "--exclude=shop.log")...)
	if code != cli.ExitOK || !strings.Contains(stdout, "equal: 0 differences, 2 documents equal, 1 collections") || !strings.Contains(stdout, "read at cuts as of ") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	// The result is stored in the metadata.
	known := must.Get(standing.Read(t.Context(), client.Open(t, driver.Config{URI: target.URI()}), "replicator", "test"))(t)
	if known.AsOf == nil || known.Collections != 1 || known.Differences != 0 || known.Bytes == 0 {
		t.Errorf("%+v", known)
	}
	if code, stdout, stderr = invoke(t, nil, append(on, "--exclude=shop.log", "--resume", "--max-bytes-per-second=10MiB")...); code != cli.ExitOK {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	insert(t, target, "shop", "orders", bson.D{{Key: "_id", Value: 3}})
	code, stdout, stderr = invoke(t, nil, append(on, "--exclude=shop.log", "--json")...)
	if code != cli.ExitFailed || !strings.HasPrefix(stdout, `{"kind":"extra"`) || !strings.Contains(stdout, `"cut":{"source":{"t":`) {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	known = must.Get(standing.Read(t.Context(), client.Open(t, driver.Config{URI: target.URI()}), "replicator", "test"))(t)
	if diff := cmp.Diff([]standing.Found{{Kind: "extra", ID: `{"$numberInt":"3"}`}}, known.Differing[0].Found); diff != "" || known.Kinds["extra"] != 1 {
		t.Errorf("%+v %s", known, diff)
	}
	if code, _, stderr = invoke(t, nil, on...); code != cli.ExitUsage || !strings.Contains(stderr, "link test mirrors other namespaces than these (everything): it was created with --exclude=shop.log; ") {
		t.Errorf("code %d, %s", code, stderr)
	}
	// The result is kept as that of the link: another set than its source is not compared.
	if code, _, stderr = invoke(t, nil, "verify", "--source="+target.URI(), on[2], on[3], "--exclude=shop.log"); code != exitResync || !strings.Contains(stderr, "another replica set") {
		t.Errorf("code %d, %s", code, stderr)
	}
	if code, _, stderr = invoke(t, nil, append(on, "--link=other")...); code != cli.ExitUsage || !strings.Contains(stderr, "there is no link other") {
		t.Errorf("code %d, %s", code, stderr)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}

// TestVerifyWithoutCut: a link that nothing runs makes no cuts, and is what an operator has who is told to compare after
// a divergence has ended it: the hint says how such a link is started.
func TestVerifyWithoutCut(t *testing.T) {
	t.Parallel()
	c := verifyCommand{Link: "dr"}
	code, hint := explain(c.unfinished(t.Context(), fmt.Errorf("verify: %w: waited 2m0s", request.ErrNoCut)))
	if code != cli.ExitUnexpected || !strings.Contains(hint, "replicator run") || !strings.Contains(hint, "--on-divergence=report") {
		t.Errorf("code %d, hint %s", code, hint)
	}
}
