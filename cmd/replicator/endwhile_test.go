package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
)

// TestEndWhileWaiting: a command that waits for a link which is cut over meanwhile says so at once, and not after its timeout.
func TestEndWhileWaiting(t *testing.T) {
	source, target := twoSets(t)
	to := client.Open(t, driver.Config{URI: target.URI()})
	store := must.Get(checkpoint.New(checkpoint.Config{Target: to, Link: "dr"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{
		Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "src"},
		Fingerprint: must.Get(scope.New(scope.Config{Include: []string{"shop"}}))(t).Fingerprint() + ";unique=relaxed",
	}))
	link := must.Get(store.Acquire(t.Context(), 0))(t)
	commands := [][]string{
		{"cut", "--wait", "--timeout=10m"},
		{"pause", "--within=10m"},
		{"throttle", "--apply-ops=5", "--within=10m"},
		{"reverify", "--within=10m"},
		{"resync", "--namespace=shop.a"},
		{"repair", "--namespace=shop.a", `--id={"$numberInt":"1"}`, "--apply"},
		{"verify", "--source=" + source.URI(), "--include=shop"},
	}
	type end struct {
		command, text string
		code          int
	}
	ends := make(chan end, len(commands))
	for _, args := range commands {
		go func() {
			code, stdout, stderr := invoke(t, nil, slices.Concat(args, []string{"--target=" + target.URI(), "--link=dr"})...)
			ends <- end{strings.Join(args, " "), stdout + stderr, code}
		}()
	}
	requests := request.New(store)
	awaitThat(t, func() bool {
		list, err := requests.List(t.Context())
		return err == nil && len(list) >= len(commands)
	}, "not everything is asked for")
	must.Succeed(t, link.End(t.Context(), checkpoint.Over{At: time.Unix(5, 0).UTC(), By: "ann@db1", Source: at}))
	limit := time.After(30 * time.Second)
	for range commands {
		select {
		case e := <-ends:
			if e.code != failure.ExitResync || !regexp.MustCompile(`link "dr" was cut over at .* by ann@db1`).MatchString(e.text) {
				t.Errorf("%s: code %d\n%s", e.command, e.code, e.text)
			}
		case <-limit:
			t.Fatal("a command waits on")
		}
	}
}
