package main

import (
	"encoding/json"
	"regexp"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// The command asks a link that makes no cuts by itself for them, and prints them. Each is later than
// the write before it. If there is no cut, the command prints the reason.
func TestCut(t *testing.T) {
	source, target := twoSets(t)
	environ := []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test"}
	l := startLink(t, append(uris(source, target), "--await=100ms", "--cut-interval=0")...)
	awaitLink(l)
	said(t, cli.ExitUnexpected, `link test has no consistent cut\n.*--wait`, environ, "cut")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)
	want := `^source \d+:\d+ t\d+, written at \d{4}-\S+Z\ntarget \d+:\d+, committed at \d{4}-\S+Z\n$`
	stdout := said(t, cli.ExitOK, `(?m)^source \d`, environ, "cut", "--wait", "--why=a report")
	if !regexp.MustCompile(want).MatchString(stdout) {
		t.Errorf("%q", stdout)
	}
	var first, second struct{ Source, Target struct{ T, I uint32 } }
	for _, into := range []any{&first, &second} {
		must.Succeed(t, json.Unmarshal([]byte(said(t, cli.ExitOK, ``, environ, "cut", "--wait", "--json")), into))
	}
	if a, b := bson.Timestamp(first.Target), bson.Timestamp(second.Target); oplog.CompareTimestamps(a, b) >= 0 {
		t.Errorf("a cut at %v, the next one at %v", a, b)
	}
	said(t, cli.ExitOK, `paused`, environ, "pause", "--why=new disks")
	said(t, cli.ExitOK, `cut +done: the target at \d+:\d+ is the source as of \d+:\d+ t\d+ +by .*@.*: a report`, environ, "events")
	said(t, cli.ExitUnexpected, `cut of link test: no consistent cut: the link is paused, since .* by .*@.*, and makes no cuts: resume it first\n`, environ, "cut", "--wait")
	said(t, cli.ExitOK, `resumed`, environ, "resume")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	said(t, cli.ExitOK, want, environ, "cut")
	said(t, cli.ExitUnexpected, `no consistent cut: waited 1s, and (no process has begun to make it yet|the target has not taken)`, environ, "cut", "--wait", "--timeout=1s")
	said(t, cli.ExitUsage, `--timeout: 0s is not between 1s and 24h`, environ, "cut", "--timeout=0s")
}

// A link that makes them by itself has cuts without being asked.
func TestCutInterval(t *testing.T) {
	source, target := twoSets(t)
	environ := []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test"}
	cuts := 0
	l := startLink(t, append(uris(source, target), "--await=100ms", "--cut-interval=100ms")...)
	awaitLink(l)
	for cuts == 0 {
		if code, _, _ := invoke(t, environ, "cut"); code == cli.ExitOK {
			cuts++
		}
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}
