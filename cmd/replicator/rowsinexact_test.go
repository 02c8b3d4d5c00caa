package main

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/status"
)

// TestInexactRows: the row of a link that another process runs is not good while foreign writes or divergences of it are open, as
// the metadata know them.
func TestInexactRows(t *testing.T) {
	t.Parallel()
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=none", "--on-divergence=report", "--guard=alarm")...)
	awaitLink(l)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)
	set := must.Get(driver.Open(t.Context(), must.Get(driver.Parse(driver.Config{URI: target.URI()}))(t)))(t)
	t.Cleanup(set.Close)
	row := func() linkRow {
		t.Helper()
		rows := rowsOf(t.Context(), set, "replicator", nil)
		if len(rows.Links) != 1 || rows.Error != "" {
			t.Fatalf("%+v", rows)
		}
		return rows.Links[0]
	}
	if r := row(); r.Verdict.Level != status.Good {
		t.Errorf("%+v", r)
	}
	tell(t, target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "limit", Value: 1}}}}})
	l.await(`foreign write to the target`)
	tell(t, source, "shop", bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}},
	}}}})
	l.await("target diverged")
	l.await("verdict", "to", "foreign-writes")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 2}})
	awaitCount(t, target, "shop", "a", 1)
	r := row()
	says := func(what string) bool {
		return slices.ContainsFunc(r.Verdict.Also, func(s string) bool { return strings.Contains(s, what) })
	}
	if r.Verdict.Level != status.Attention || r.Verdict.Name != "foreign-writes" || !strings.HasPrefix(r.Verdict.Sentence, "Something else has written to shop.a") ||
		!says("As of the metadata, ") || !says("1 operation in shop.a") {
		t.Errorf("%+v", r)
	}
	said(t, cli.ExitOK, "", []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test"}, "guard", "--clear")
	if r = row(); r.Verdict.Level != status.Attention || r.Verdict.Name != "diverged" || says("Something else") {
		t.Errorf("%+v", r)
	}
	tell(t, target, "replicator", bson.D{{Key: "drop", Value: "diverged"}})
	if r = row(); r.Verdict.Level != status.Good {
		t.Errorf("%+v", r)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
