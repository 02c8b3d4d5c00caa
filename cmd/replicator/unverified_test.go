package main

import (
	"encoding/json"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/status"
)

// TestUnverified: a divergence, and a resync, make their collection unverified until it is compared again.
// While a side does not answer, nothing counts as verified anew: the last results age.
func TestUnverified(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--listen=127.0.0.1:0", "--await=100ms", "--cut-interval=100ms", "--guard=off", "--on-divergence=report",
		"--verify=continuous", "--verify-budget=100%", "--verify-every=1s")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	awaitLink(l)
	verified := func() *status.Verified {
		t.Helper()
		var s status.Snapshot
		_, body := get(t, "http://"+address+"/status")
		must.Succeed(t, json.Unmarshal([]byte(body), &s))
		return s.Verified
	}
	var v *status.Verified
	is := func(what string, ok func() bool) {
		t.Helper()
		awaitThat(t, func() bool { v = verified(); return v != nil && ok() }, "%s: %+v", what, &v)
	}
	lost := func(ns, why string) {
		t.Helper()
		if e := l.await("a collection is not verified any more"); e["ns"] != ns || e["why"] != why {
			t.Errorf("%v, want %s: %s", e, ns, why)
		}
	}
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}})
	insert(t, source, "shop", "b", bson.D{{Key: "_id", Value: 1}})
	all := func() bool { return v.At != nil && v.Verified == 2 && v.Collections == 2 && v.Differences == 0 }
	is("verified", all)

	tell(t, target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}})
	tell(t, source, "shop", bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}},
	}}}})
	lost("shop.a", whyDiverged)
	is("different", func() bool { return v.Differences == 1 && v.Differing[0].Namespace == "shop.a" })
	for _, ns := range []string{"shop.a", "shop.b"} {
		again := startCommand(t, nil, "resync", "--link=test", "--namespace="+ns, "--target="+target.URI())
		again.see(ns + " is the same as the source's again")
		if code := again.end(); code != cli.ExitOK {
			t.Errorf("resync %s: code %d", ns, code)
		}
		lost(ns, "it was copied again")
	}
	is("verified after the resyncs", all)

	for name, set := range map[string]*mongosim.Set{"source": source, "target": target} {
		for _, m := range set.Members() {
			m.Freeze()
		}
		began := time.Now()
		// The link makes cuts while its source is frozen: no comparison is of one of them.
		is(name+" is frozen", func() bool {
			if v.Cut != nil && int64(v.Cut.Target.T) > began.Unix()+1 {
				t.Fatalf("the %s is frozen since %s, and the link is verified as of %+v", name, began, v.Cut)
			}
			return time.Since(began) > 2*time.Second+200*time.Millisecond
		})
		for _, m := range set.Members() {
			m.Thaw()
		}
		is(name+" goes on", func() bool { return all() && int64(v.Cut.Target.T) > began.Unix()+1 })
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}
