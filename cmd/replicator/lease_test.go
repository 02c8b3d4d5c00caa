package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/mongosim"
)

// leaseWorld is a target with locks.
type leaseWorld struct {
	*testing.T
	on    string
	store *mongostore.Store
}

func newLeaseWorld(t *testing.T) leaseWorld {
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
	return leaseWorld{t, "--target=" + target.URI(), mongostore.New(client.Open(t, driver.Config{URI: target.URI()}), "replicator")}
}

// run runs a lease command, which must end with that code and print all of the texts.
func (w leaseWorld) run(want int, texts []string, args ...string) string {
	w.Helper()
	name, rest := args[0], args[1:]
	code, stdout, stderr := invoke(w.T, nil, append([]string{"lease", name, w.on}, rest...)...)
	if code != want {
		w.Errorf("%q: code %d, want %d\n%s%s", args, code, want, stdout, stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stdout+stderr, text) {
			w.Errorf("%q: no %q in\n%s%s", args, text, stdout, stderr)
		}
	}
	return stdout
}

func TestLeaseExec(t *testing.T) {
	w := newLeaseWorld(t)
	w.run(cli.ExitOK, []string{"There is no lease and no lock in replicator"}, "list")
	for n, want := range []string{"1 nightly", "2 nightly"} {
		got := w.run(n*3, nil, "exec", "nightly", "--", "sh", "-c", "echo $REPLICATOR_LEASE_TOKEN $REPLICATOR_LEASE_NAME; exit "+[]string{"0", "3"}[n])
		if got != want+"\n" {
			t.Errorf("%q, want %q", got, want)
		}
	}
	w.run(cli.ExitOK, []string{"nightly: no process has it. Its last term was 2."}, "show", "nightly")
	w.run(1, []string{"The command was not run"}, "exec", "nightly", "--", "/does/not/exist")
	w.run(cli.ExitUsage, []string{"the name of the lock is empty"}, "exec", "", "--", "true")
	if got := w.run(cli.ExitOK, nil, "show", "nightly", "--json"); strings.Contains(got, "expires") || strings.Contains(got, "process") {
		t.Errorf("nobody has it, and it prints %s", got)
	}
	w.run(128+9, nil, "exec", "nightly", "--", "sh", "-c", "kill -9 $$")
	w.run(cli.ExitUsage, []string{"such names are those of links' leases", "--ttl"}, "exec", "link/a", "--ttl=1ms", "--", "true")
	w.run(cli.ExitUsage, []string{"there is no lease or lock other in replicator of the target, which has nightly"}, "show", "other")
	w.run(cli.ExitUsage, []string{"has nightly"}, "release", "other", "--yes")
	w.run(cli.ExitUsage, []string{"replicator run --link=a --takeover"}, "release", "link/a")
}

// TestLeaseExecOne: a command runs once at a time. Others are told by whom and why. A lock that is
// released by hand ends the command.
func TestLeaseExecOne(t *testing.T) {
	w := newLeaseWorld(t)
	ready := filepath.Join(t.TempDir(), "ready")
	ended := make(chan [2]any, 1)
	go func() {
		code, _, stderr := invoke(t, nil, "lease", "exec", w.on, "nightly", "--why=backup of shop", "--", "sh", "-c", "touch "+ready+"; exec sleep 100")
		ended <- [2]any{code, stderr}
	}()
	for {
		if _, err := os.Stat(ready); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	w.run(1, []string{"the command was not run", "the lock is taken: nightly is locked by ", "for lease exec: backup of shop", "Without --wait it waits"}, "exec", "nightly", "--wait=0s", "--", "true")
	w.run(1, []string{"timed out after 100ms: nightly is locked by "}, "exec", "nightly", "--wait=100ms", "--", "true")
	w.run(cli.ExitOK, []string{"NAME", "nightly  1 ", "backup of shop"}, "list")
	w.run(cli.ExitOK, []string{"  process  ", "  term     1, ", "unless it is renewed", "  who      lease exec", "  why      backup of shop"}, "show", "nightly")
	var line leaseLine
	if err := json.Unmarshal([]byte(w.run(cli.ExitOK, nil, "show", "--json", "nightly")), &line); err != nil || !line.Locked || line.Term != 1 || line.Expires == nil || line.Why != "backup of shop" {
		t.Errorf("%v: %+v", err, line)
	}
	if lines := strings.Count(w.run(cli.ExitOK, nil, "list", "--json"), "\n"); lines != 1 {
		t.Errorf("%d lines", lines)
	}
	w.run(cli.ExitOK, []string{"nightly is released. Its next term is 2."}, "release", "nightly", "--yes")
	released := time.Now()
	end := <-ended
	if took := time.Since(released); took > time.Minute {
		t.Errorf("the command ended %s later", took)
	}
	if end[0] != 1 || !strings.Contains(end[1].(string), "the command was ended: ") || !strings.Contains(end[1].(string), locks.ErrLost.Error()) {
		t.Errorf("%v", end)
	}
}

// TestLeaseRelease: it says what it does, and asks.
func TestLeaseRelease(t *testing.T) {
	w := newLeaseWorld(t)
	claim := locks.Claim{Name: "shop", Process: "p", ID: bson.NewObjectID(), Why: "link dr copies shop.a again"}
	must.Get(w.store.Acquire(t.Context(), claim))(t)
	for _, tt := range []struct {
		answer string
		locked bool
	}{{"no\n", true}, {"", true}, {"yes\n", false}} {
		var text bytes.Buffer
		c := &leaseReleaseCommand{Name: "shop", targetFlags: targetFlags{Target: strings.TrimPrefix(w.on, "--target="), MetadataDB: "replicator", SelectionTimeout: 5 * time.Second}}
		err := c.release(t.Context(), cli.Output{Results: &text, Complaints: &text}, strings.NewReader(tt.answer))
		if code, _ := explain(err); (err != nil) != tt.locked || tt.locked && code != cli.ExitUsage {
			t.Errorf("%q: %v", tt.answer, err)
		}
		for _, want := range []string{"shop is locked by p since ", "link dr copies shop.a again", "late writes", "Type yes"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %q in %s", want, &text)
			}
		}
		if list := must.Get(w.store.List(t.Context(), ""))(t); list[0].IsLocked() != tt.locked || list[0].Term != 1 {
			t.Errorf("%q: %+v", tt.answer, list)
		}
	}
	w.run(cli.ExitOK, []string{"shop: no process has it."}, "release", "shop", "--yes")
}

// TestLeaseOfLink: list and show have the leases of links.
func TestLeaseOfLink(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	w := leaseWorld{T: t, on: "--target=" + target.URI()}
	w.run(cli.ExitOK, []string{"link/test  1 "}, "list")
	w.run(cli.ExitOK, []string{"link/test", "unless it is renewed", "term     1"}, "show", "link/test")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
	w.run(cli.ExitOK, []string{"link/test: no process has it."}, "show", "link/test")
}
