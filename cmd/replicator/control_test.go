package main

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/status"
)

// said checks the exit code of a command, and its output by an expression.
func said(t *testing.T, wantCode int, want string, environ []string, args ...string) string {
	t.Helper()
	code, stdout, stderr := invoke(t, environ, args...)
	if text := stdout + stderr; code != wantCode || !regexp.MustCompile(want).MatchString(text) {
		t.Errorf("%s: code %d, want %d and %s:\n%s", strings.Join(args, " "), code, wantCode, want, text)
	}
	return stdout
}

// TestPauseCommand: a link is paused, throttled and resumed from the command line, whether a process
// runs it or not; health and status say so, and the history has the operator, the time and the reason.
func TestPauseCommand(t *testing.T) {
	source, target := twoSets(t)
	environ := []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test"}
	args := append(uris(source, target), "--await=100ms")
	l := startLink(t, append(args, "--listen=127.0.0.1:0")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	awaitLink(l)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)

	said(t, cli.ExitOK, `(?s)test: pause: paused; the oplog is applied up to \d+:\d+ t\d+\.\n$`, environ, "pause", "--why=new disks")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 2}})
	said(t, cli.ExitOK, `test: pause: it was paused already, since .* UTC by .*@`, environ, "pause")
	code, body := get(t, "http://"+address+"/healthz")
	if code != http.StatusOK || !regexp.MustCompile(`^attention: Paused for .* by .*@.*: new disks\. `).MatchString(body) || !strings.Contains(body, "next: replicator resume --link test --target ") {
		t.Errorf("health: %d %s", code, body)
	}
	said(t, cli.ExitUsage, `refused: adaptive works below a limit`, environ, "throttle", "--adaptive=on")
	said(t, cli.ExitOK, `test: throttle: applies at most 5000 operations per second and at most 1048576 bytes per second, less while`, environ,
		"throttle", "--apply-ops=5000", "--apply-bytes=1MiB", "--adaptive=on", "--why=calm")
	said(t, cli.ExitOK, `Link test applies at most 5000 operations per second and at most 1048576 bytes per second, less while`, environ, "throttle")

	_, body = get(t, "http://"+address+"/status")
	var s status.Snapshot
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Control == nil || s.Control.Paused == nil || s.Control.Paused.Why != "new disks" ||
		*s.Control.Throttle.ApplyOpsPerSecond != 5000 || !s.Control.Throttle.Adaptive || s.Control.Throttle.CopyOpsPerSecond != nil || len(s.Control.Requests) < 3 {
		t.Errorf("%v: %s", err, body)
	}
	said(t, cli.ExitOK, `"kind":"pause","request":\{"id":"[^"]+","kind":"pause","by":"[^"]+@[^"]+","why":"new disks","at":"[^"]+","args":\{\},"state":"done"`, environ, "events", "--json")
	// It is said since when the process leads, not when that was read.
	said(t, cli.ExitOK, `^\S+ +leader +term \d+: .*\n(.*\n)*\S+ +pause +done: paused`, environ, "events")

	// Entries not applied are not lost, and the next process applies nothing either.
	l.drain()
	if code := l.end(); code != failure.ExitNotDrained {
		t.Errorf("a paused link that was drained: code %d\n%s", code, &l.log)
	}
	said(t, cli.ExitUnexpected, `waited 1s, and it is not begun: no process runs the link(.|\n)*The request stays`, environ, "resume", "--within=1s")
	if n := countDocs(t, target, "shop", "a"); n != 1 {
		t.Errorf("%d documents of a paused link", n)
	}
	said(t, cli.ExitOK, `test: throttle: asked for\. A process that runs the link`, environ, "throttle", "--off", "--no-wait")
	// The two may be done in either order.
	follow, other := startCommand(t, environ, "events", "--follow"), startCommand(t, environ, "events", "--follow")
	follow.see("done: paused; the oplog is applied up to")
	l = startLink(t, args...)
	awaitCount(t, target, "shop", "a", 2)
	follow.see("done: resumed after")
	other.see("done: applies without a limit")
	said(t, cli.ExitOK, `pause +done: paused; .* by .*@.*: new disks\n(.|\n)*leader +term \d+: `, environ, "events")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
	said(t, cli.ExitUsage, `--apply-ops: "x" is not a number of 0 or more`, environ, "throttle", "--apply-ops=x")
	said(t, cli.ExitUsage, "--off removes the limits of applying", environ, "throttle", "--apply-ops=5", "--off")
}
