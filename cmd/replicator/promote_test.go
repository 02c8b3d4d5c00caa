package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/promote"
	"github.com/oplogrep/replicator/status"
)

// TestPromoteRestores: a promotion restores the options that are deferred. Documents that violate a unique index
// do not keep it from the others; all of them are listed, and the same command goes on once they are mended.
func TestPromoteRestores(t *testing.T) {
	c := startCutoverLink(t)
	tell(t, c.source, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "v", Value: 2}, {Key: "name", Value: "sku_1"}, {Key: "key", Value: bson.D{{Key: "sku", Value: 1}}}, {Key: "unique", Value: true}, {Key: "sparse", Value: true}},
		bson.D{{Key: "v", Value: 2}, {Key: "name", Value: "ttl"}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "expireAfterSeconds", Value: 3600}},
	}}})
	insert(t, c.source, "shop", "b", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, c.target, "shop", "b", 1)
	for id := 10; id < 40; id++ { // more than a reply of the embedded set, or a summary, has
		insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: id}, {Key: "email", Value: "x"}})
	}
	insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: "y1"}, {Key: "email", Value: "y"}}, bson.D{{Key: "_id", Value: "y2"}, {Key: "email", Value: "y"}})
	file := filepath.Join(t.TempDir(), "violations")
	promote := []string{"promote", "--source-is-gone", "--target=" + c.target.URI(), "--link=test"}
	said(t, cli.ExitUsage, `--link: promote link "tset": there is no such link`, nil, append(promote, "--link=tset")...)
	said(t, cli.ExitOK, `Deferred: 3 indexes and collections have options that the target gets when the link is promoted\.`, nil, append(promote, "--dry-run")...)
	here := []string{"promote", "--source=" + c.source.URI(), "--target=" + c.target.URI(), "--link=test"}
	said(t, cli.ExitFailed, `the source is not gone: its primary .* answers\n`, nil, here...)
	said(t, cli.ExitFailed, `^Link test was promoted at (.|\n)*\nRestored: 2 options of indexes and collections\.\nNOT UNIQUE: email_1 of shop\.a: several documents have the same key\.\n(.|\n)*Run the same command again`,
		nil, append(promote, "--violations="+file)...)
	isShownAs(t, c, status.Attention, `(.|\n)*next: replicator promote --link test …(.|\n)*also: Not restored: options of 1 indexes and collections`)
	if text := said(t, cli.ExitOK, `^Link test was promoted`, nil, append(promote, "--dry-run")...); strings.Contains(text, "Restored") {
		t.Errorf("it restores options though it is to change nothing: %s", text)
	}
	if code := c.end(); code != failure.ExitResync {
		t.Errorf("the process that led: code %d\n%s", code, &c.log)
	}
	lines := strings.Split(strings.TrimSpace(string(must.Get(os.ReadFile(file))(t))), "\n")
	if n := strings.Count(strings.Join(lines, ""), "$numberInt"); len(lines) != 2 || n != 31 || !strings.Contains(strings.Join(lines, "\n"), `{"namespace":"shop.a","index":"email_1","key":["y"],"ids":["y1","y2"]}`) {
		t.Errorf("%d lines, %d numbers: %s", len(lines), n, lines)
	}
	indexes := func() string { return tell(t, c.target, "shop", bson.D{{Key: "listIndexes", Value: "a"}}).String() }
	if text := indexes(); strings.Count(text, `"unique": true`) != 1 || !strings.Contains(text, "3600") || strings.Contains(text, "prepareUnique") {
		t.Errorf("the target's indexes are %s", text)
	}
	said(t, cli.ExitUsage, `--violations: .* is there already`, nil, append(promote, "--violations="+file)...)
	said(t, cli.ExitFailed, `Restored: 0 options (.|\n)*NOT UNIQUE: email_1 of shop\.a(.|\n)*--violations FILE lists`, nil, promote...)
	tell(t, c.target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 10}}}}}, {Key: "limit", Value: 0}},
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "y1"}}}, {Key: "limit", Value: 1}},
	}}})
	said(t, cli.ExitOK, `"refused":\[\],"relayLog":.*"restored":1`, nil, append(promote, "--json")...)
	if text := indexes(); strings.Count(text, `"unique": true`) != 2 {
		t.Errorf("the target's indexes are %s", text)
	}
	if text := said(t, cli.ExitOK, `^Link test was promoted`, nil, promote...); strings.Contains(text, "Restored") || strings.Contains(text, "Deferred") {
		t.Errorf("again: %s", text)
	}
	isShownAs(t, c, status.Good, "")
	said(t, cli.ExitOK, `^Link test was promoted`, nil, here...) // its source does not matter any more
	// A cutover that was under way ends with the link, and what blocks writes is told.
	records := &record.Store{Target: client.Open(t, driver.Config{URI: c.target.URI()}), DB: "replicator"}
	r := &record.Record{Link: "test", ID: "x", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Freeze, "me", time.Now())
	must.Succeed(t, records.Put(t.Context(), nil, r))
	said(t, cli.ExitOK, `Cutover: .* the old source may still block writes`, nil, promote...)
	if r, err := records.Get(t.Context(), "test"); err != nil || r.Open() {
		t.Errorf("the cutover is %v, %v", r, err)
	}
	tell(t, c.target, "admin", bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: true}})
	if text := said(t, cli.ExitOK, `BLOCKED: the target blocks writes of users`, nil, promote...); strings.Contains(text, "Cutover:") {
		t.Errorf("again: %s", text)
	}
	said(t, cli.ExitOK, `"targetBlocked":true`, nil, append(promote, "--dry-run", "--json")...)
}

// isShownAs checks how replicator status and the page judge a link that was promoted.
func isShownAs(t *testing.T, c *cutoverLink, level status.Level, text string) {
	t.Helper()
	said(t, cli.ExitOK, string(level)+`: Promoted at `+text, nil, "status", "--target="+c.target.URI(), "--link=test")
	rows := rowsOf(t.Context(), client.Open(t, driver.Config{URI: c.target.URI()}), "replicator", nil)
	if len(rows.Links) != 1 || rows.Links[0].Verdict.Level != level || rows.Error != "" {
		t.Errorf("the page's rows: %+v", rows)
	}
}

// TestRecoveryPositions: a position within an entry has the number of its operation, the end of an entry has none.
func TestRecoveryPositions(t *testing.T) {
	t.Parallel()
	within, end := checkpoint.Position{OpTime: oplog.NewOpTime(7, 1, 1), Op: 3}, checkpoint.Position{OpTime: oplog.NewOpTime(8, 1, 1), Op: checkpoint.AllOps}
	r := &promote.Recovery{
		Link: "dr", At: oplog.NewOpTime(6, 1, 1), Ahead: []promote.Ahead{{Lane: 1, At: within}, {Lane: 2, At: end}},
		KeptBack: []checkpoint.KeptBack{{NS: "shop.a", Since: within}, {NS: "shop.b", Since: end}},
	}
	var text strings.Builder
	must.Succeed(t, writeRecovery(&text, r, &restored{}))
	for _, want := range []string{"up to 7:1 t1, number 3\n", "up to 8:1 t1\n", "up to 7:1 t1, number 3, and none", "up to 8:1 t1, and none"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	asJSON := string(must.Get(json.Marshal(recoveryJSON(r, &restored{})))(t))
	if strings.Count(asJSON, `"op":3`) != 2 || strings.Count(asJSON, `"op":null`) != 2 {
		t.Error(asJSON)
	}
}
