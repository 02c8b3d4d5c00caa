package main

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestSourceWithoutPrimary: members of a source that has no primary go on to answer, with nothing new. That does not make the
// target exact as of now: one that is cut off from its set answers the same. Once there is a primary the link is steady again.
func TestSourceWithoutPrimary(t *testing.T) {
	t.Parallel()
	source := mongosim.StartTest(t, mongosim.Options{Members: 3, Moods: oneRun, SetName: "src", Seed: 1})
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	for _, m := range source.Members() {
		source.Isolate(m.ID())
	}
	line := l.await("verdict", "to", "source-no-primary")
	if text, _ := line["sentence"].(string); line["level"] != "unknown" || !strings.HasPrefix(text, "The source has no primary, or ") {
		t.Errorf("%v", line)
	}
	source.HealAll()
	l.await("verdict", "from", "source-no-primary", "to", "steady")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}

// TestStatusWithoutLease: a process that has lost its lease, as the target's disk is full, still runs. It is asked what the matter
// is; the metadata would say that no process runs the link.
func TestStatusWithoutLease(t *testing.T) {
	t.Parallel()
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=127.0.0.1:0", "--lease-ttl=1s", "--lease-renew=200ms")...)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	must.Succeed(t, target.Do(t.Context(), must.Get(mongosim.ParseAction("diskfull 0 on"))(t)))
	l.await("verdict", "to", "retrying")
	code, stdout, stderr := invoke(t, nil, "status", "--target="+target.URI())
	if strings.Contains(stdout, "No process runs") || !strings.Contains(stdout, "OutOfDiskSpace") || !strings.Contains(stdout, "asked 127.0.0.1:") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	must.Succeed(t, target.Do(t.Context(), must.Get(mongosim.ParseAction("diskfull 0 off"))(t)))
	l.await("verdict", "from", "retrying", "to", "steady")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
