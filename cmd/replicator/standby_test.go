package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestRunStandsBy: the first process leads, the second one stands by and says so, and leads
// at once when the first one has ended. With --takeover the first one leads at once, and
// the second one stands by again.
func TestRunStandsBy(t *testing.T) {
	source, target := twoSets(t)
	args := append(uris(source, target), "--await=100ms")
	first := startLink(t, args...)
	awaitLink(first)
	second := startLink(t, append(args, "--listen=127.0.0.1:0")...)
	address, _ := second.await("serving status, health and metrics")["listen"].(string)
	reason, _ := second.await("state changed", "to", "standby")["reason"].(string)
	if !strings.Contains(reason, " leads in term 1 since ") {
		t.Errorf("reason %q", reason)
	}
	code, body := get(t, "http://"+address+"/healthz")
	if code != http.StatusOK || !strings.HasPrefix(body, "good: Standing by: ") || strings.Contains(body, "lag") {
		t.Errorf("health: %d %s", code, body)
	}
	var status struct {
		State string
		Lease struct{ Role, Process, Leader, Since, Until string }
	}
	_, body = get(t, "http://"+address+"/status")
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.State != "standby" || status.Lease.Role != "standby" || status.Lease.Leader == "" ||
		status.Lease.Leader == status.Lease.Process || status.Lease.Until <= status.Lease.Since {
		t.Errorf("status: %v, %+v", err, status)
	}
	_, body = get(t, "http://"+address+"/metrics")
	for _, want := range []string{
		`replicator_lease_leader{link="test"} 0`, `replicator_lease_term{link="test"} 1`, `replicator_lease_seconds_left{link="test"} 0`,
		`replicator_lease_takeovers_total{link="test"} 0`, `replicator_state{state="standby"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	first.drain()
	if code := first.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &first.log)
	}
	awaitLink(second)
	first = startLink(t, append(args, "--takeover")...)
	first.await("taking the link over: writes of the process that has its lease are refused from now on, and it stands by")
	awaitLink(first)
	second.await("state changed", "to", "standby")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	awaitCount(t, target, "shop", "a", 1)
	second.drain()
	if code := second.end(); code != cli.ExitOK || !strings.Contains(second.log.String(), "stopped: another process leads") {
		t.Errorf("code %d\n%s", code, &second.log)
	}
	first.drain()
	if code := first.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &first.log)
	}
}

// TestRunOnce: a process with --once ends with its code instead of standing by, at the start
// and when it has lost the lease.
func TestRunOnce(t *testing.T) {
	source, target := twoSets(t)
	args := append(uris(source, target), "--await=100ms")
	first := startLink(t, append(args, "--once")...)
	awaitLink(first)
	for _, second := range []*runLink{startLink(t, append(args, "--once")...), first} {
		if second == first {
			third := startLink(t, append(args, "--takeover")...)
			awaitLink(third)
		}
		if code := second.end(); code != failure.ExitFenced {
			t.Errorf("code %d\n%s", code, &second.log)
		}
		fields := map[string]any{}
		lines := strings.Split(strings.TrimSpace(second.log.String()), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &fields); err != nil || fields["msg"] != "ended with an error" ||
			fields["exitCode"] != float64(failure.ExitFenced) || fields["hint"] == "" {
			t.Errorf("last line: %v, %v", fields, err)
		}
	}
}
