package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// The command prints cuts that the link makes, and waits for a later one.
func TestCut(t *testing.T) {
	source, target := twoSets(t)
	on := []string{"cut", "--target=" + target.URI(), "--link=test"}
	l := startLink(t, append(uris(source, target), "--await=100ms", "--cut-interval=100ms")...)
	awaitLink(l)
	code, stdout, stderr := invoke(t, nil, append(on, "--wait")...)
	want := regexp.MustCompile(`^source \d+:\d+ t\d+, written at \d{4}-\S+Z\ntarget \d+:\d+, committed at \d{4}-\S+Z\n$`)
	if code != cli.ExitOK || !want.MatchString(stdout) {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	var first, second struct{ Target struct{ T, I uint32 } }
	for _, into := range []any{&first, &second} {
		code, stdout, stderr := invoke(t, nil, append(on, "--wait", "--json")...)
		if code != cli.ExitOK {
			t.Fatalf("code %d, %s", code, stderr)
		}
		must.Succeed(t, json.Unmarshal([]byte(stdout), into))
	}
	if a, b := first.Target, second.Target; b.T < a.T || b.T == a.T && b.I <= a.I {
		t.Errorf("a cut at %v, the next one at %v", a, b)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	if code, stdout, _ := invoke(t, nil, on...); code != cli.ExitOK || !want.MatchString(stdout) {
		t.Errorf("code %d, %s", code, stdout)
	}
	code, _, stderr = invoke(t, nil, append(on, "--wait", "--timeout=1ms")...)
	if code == cli.ExitOK || !strings.Contains(stderr, "link test has made no consistent cut for 1ms: it makes them while it runs with --cut-interval") {
		t.Errorf("code %d, %s", code, stderr)
	}
	if code, _, stderr = invoke(t, nil, append(on, "--timeout=0s")...); code != cli.ExitUsage {
		t.Errorf("code %d, %s", code, stderr)
	}
}
