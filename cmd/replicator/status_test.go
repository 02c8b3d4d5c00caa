package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/status"
)

// TestStatus: the process that runs a link is asked, from its id in the metadata; without it
// the metadata say what they know, and that no process runs the link.
func TestStatus(t *testing.T) {
	source, target := twoSets(t)
	on := "--target=" + target.URI()
	code, stdout, stderr := invoke(t, nil, "status", on)
	if code != cli.ExitOK || stdout != "" || !strings.Contains(stderr, "There is no link in replicator") {
		t.Errorf("no link: code %d, %s%s", code, stdout, stderr)
	}
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=127.0.0.1:0")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	awaitLink(l)
	l.await("verdict", "to", "steady")

	code, stdout, stderr = invoke(t, nil, "status", on, "--max-lag=1m")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "test  good: Steady. Exact as of ") || !strings.Contains(stdout, "\n      asked ") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = invoke(t, nil, "status", on, "--link=test", "--at="+address, "--json")
	var line statusLine
	if err := json.Unmarshal([]byte(stdout), &line); err != nil || code != cli.ExitOK || line.Link != "test" || line.From != "process" || line.Leader == "" ||
		line.Address != address || line.Status == nil || line.Status.Link != "test" || line.Verdict.Level != status.Good || line.LagSeconds == nil {
		t.Errorf("code %d, %v, %s%s", code, err, stdout, stderr)
	}

	// Something else is there.
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"link": "test", "verdict": {"sentence": "All is well."}, "lease": {"process": "vm:1:2:3"}}`))
	}))
	defer other.Close()
	code, stdout, stderr = invoke(t, nil, "status", on, "--link=test", "--at="+other.Listener.Addr().String())
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "test  good: As of the metadata, the target has everything up to ") ||
		!strings.Contains(stdout, "it is not the process") || strings.Contains(stdout, "All is well") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}

	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	code, stdout, stderr = invoke(t, nil, "status", on)
	if code != cli.ExitFailed || !strings.HasPrefix(stdout, "test  broken: No process runs the link. As of the metadata, the target has everything up to ") ||
		!strings.Contains(stdout, "next: replicator run --link test") || !strings.Contains(stderr, "test: No process runs the link.") {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
	for _, tt := range []struct{ flag, want string }{
		{"--link=tset", "there is no link tset in replicator of the target, which has test"},
		{"--link=a b", "a name has letters"},
		{"--max-lag=-1s", "--max-lag: -1s is negative"},
		{"--at=here", "--at: "},
		{"--at=127.0.0.1:1", "name the --link"},
	} {
		if code, _, stderr := invoke(t, nil, "status", on, tt.flag); code != cli.ExitUsage || !strings.Contains(stderr, tt.want) {
			t.Errorf("%s: code %d, %s", tt.flag, code, stderr)
		}
	}
}

// TestStatusWatch: it goes on, and shows what changes, also after a failover of the target.
func TestStatusWatch(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=127.0.0.1:0")...)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	watch := startCommand(t, nil, "status", "--target="+target.URI(), "--watch")
	watch.see("test  good: Steady.")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	tell(t, target, "admin", bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: bson.D{{Key: "times", Value: 1}}}, {Key: "data", Value: bson.D{
		{Key: "failCommands", Value: bson.A{"find"}}, {Key: "errorCode", Value: 189},
	}}})
	watch.see("test  broken: No process runs the link.")
}

// TestStatusJudges: what makes the command fail.
func TestStatusJudges(t *testing.T) {
	t.Parallel()
	lag := func(s float64) *float64 { return &s }
	for _, tt := range []struct {
		name   string
		maxLag time.Duration
		line   statusLine
		want   string
	}{
		{"it lags, and may", 0, statusLine{LagSeconds: lag(3600)}, ""},
		{"it lags less", 10 * time.Second, statusLine{LagSeconds: lag(10)}, ""},
		{"it lags more", 10 * time.Second, statusLine{LagSeconds: lag(10.1)}, "l: the target lags 10.1 s, more than 10s"},
		{"unknown is not 0", 10 * time.Second, statusLine{}, "l: how far the target lags is not known"},
		{"unknown, before the link was read", 10 * time.Second, statusLine{Status: &status.Snapshot{}}, "l: how far the target lags is not known"},
		{"a copy has begun just now", 10 * time.Second, statusLine{LagSeconds: lag(0), Status: &status.Snapshot{}}, "l: the target is not consistent"},
		{"a copy, and nobody asked", 0, statusLine{LagSeconds: lag(0), Status: &status.Snapshot{}}, ""},
		{"it is consistent", 10 * time.Second, statusLine{LagSeconds: lag(0), Status: &status.Snapshot{Consistent: true}}, ""},
		{"unknown, and nobody asked", 0, statusLine{}, ""},
		{"broken", 0, statusLine{Verdict: status.Verdict{Level: status.Broken, Sentence: "Ended."}}, "l: Ended."},
		{"attention", 0, statusLine{Verdict: status.Verdict{Level: status.Attention}}, ""},
	} {
		c := statusCommand{MaxLag: tt.maxLag}
		tt.line.Link = "l"
		err := c.judge([]statusLine{{Link: "a", LagSeconds: lag(0)}, tt.line})
		if got := ""; err != nil {
			got = err.Error()
			if code, _ := cli.Explain(err); got != tt.want || code != cli.ExitFailed {
				t.Errorf("%s: %s, code %d", tt.name, got, code)
			}
		} else if tt.want != "" {
			t.Errorf("%s: no error", tt.name)
		}
	}
}
