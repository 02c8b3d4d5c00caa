package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// agents are processes that share the links of a file.
type agents struct {
	*testing.T
	source, target *mongosim.Set
	file           string
	started        map[string]*runLink
}

// newAgents starts two sets, without any process.
func newAgents(t *testing.T) *agents {
	t.Helper()
	a := &agents{T: t, file: filepath.Join(t.TempDir(), "links.yaml"), started: map[string]*runLink{}}
	a.source, a.target = twoSets(t)
	return a
}

// write writes the file. Each link mirrors the database of its name.
func (a *agents) write(links ...string) {
	a.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "lease-ttl: 1m\nlease-renew: 500ms\ndefaults:\n  source: %s\n  target: %s\n  await: 100ms\n  selection-timeout: 1m\n  spool-dir: %s\nlinks:\n",
		a.source.URI(), a.target.URI(), filepath.Dir(a.file))
	for _, l := range links {
		name, settings, _ := strings.Cut(l, " ")
		fmt.Fprintf(&text, "  %s:\n    include: [%s]\n", name, name)
		if settings != "" {
			text.WriteString("    " + settings + "\n")
		}
	}
	// As a ConfigMap does it: the file is there at any time, old or new.
	must.Succeed(a, os.WriteFile(a.file+"~", []byte(text.String()), 0o600))
	must.Succeed(a, os.Rename(a.file+"~", a.file))
}

func (a *agents) start(members ...string) {
	a.Helper()
	for _, m := range members {
		a.started[m] = startProgram(a.T, "agent", "--log-format=json", "--listen=127.0.0.1:0", "--links="+a.file, "--member="+m, "--max-links=6", "--memory=2GiB")
	}
	for _, m := range members {
		a.started[m].await("the member has joined")
	}
}

// status is what replicator agent status says.
func (a *agents) status() (f fleet) {
	a.Helper()
	code, stdout, stderr := invoke(a.T, nil, "agent", "status", "--json", "--links="+a.file)
	if code != cli.ExitOK {
		a.Fatalf("code %d: %s", code, stderr)
	}
	must.Succeed(a, json.Unmarshal([]byte(stdout), &f))
	return f
}

// far is how long something may take that must happen.
const far = 5 * time.Minute

// until waits until the status of the fleet is as it should be.
func (a *agents) until(what string, done func(f *fleet) bool) fleet {
	a.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		f := a.status()
		if done(&f) {
			return f
		}
		if time.Since(began) > far {
			a.Fatalf("%s: not in %s: %+v", what, far, f)
		}
	}
}

// runs returns how many links each member has, MEMBER=N, sorted.
func runs(f *fleet) []string {
	var list []string
	for _, m := range f.Members {
		list = append(list, fmt.Sprintf("%s=%d", m.Member, m.Running))
	}
	return list
}

func spread(want ...string) func(*fleet) bool {
	return func(f *fleet) bool { return slices.Equal(runs(f), want) }
}

// mirrors inserts a document into each database, and waits until it is in the target.
func (a *agents) mirrors(id int, dbs ...string) {
	a.Helper()
	for _, db := range dbs {
		insert(a.T, a.source, db, "c", bson.D{{Key: "_id", Value: id}})
	}
	for _, db := range dbs {
		for began := time.Now(); countDocs(a.T, a.target, db, "c") != int64(id); time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > far {
				for m, l := range a.started {
					a.Logf("%s:\n%s", m, &l.log)
				}
				a.Fatalf("%s is not mirrored: %+v", db, a.status())
			}
		}
	}
}

func (a *agents) end(member string) {
	a.Helper()
	l := a.started[member]
	l.drain()
	if code := l.end(); code != cli.ExitOK || !strings.Contains(l.log.String(), `"msg":"all links have drained"`) {
		a.Errorf("%s: code %d\n%s", member, code, &l.log)
	}
}

// TestAgents: three processes share six links evenly and mirror them; a link that cannot work
// does not disturb the others, and is shown with its code. One that is drained gives its links to
// the others, one that ends, too.
func TestAgents(t *testing.T) {
	a := newAgents(t)
	a.write("a", "b", "c", "d", "e", "broken start-at: 2001-01-01T00:00:00Z")
	a.start("m1", "m2", "m3")
	f := a.until("each has two", spread("m1=2", "m2=2", "m3=2"))
	if f.Coordinator == nil || len(f.Links) != 6 || slices.ContainsFunc(f.Links, func(l fleetLink) bool { return !l.InFile || l.Why == "" || l.Since == nil }) {
		t.Errorf("status: %+v", f)
	}
	a.mirrors(1, "a", "b", "c", "d", "e")
	f = a.until("the broken link is shown", func(f *fleet) bool { return f.Links[2].Failure != nil })
	if l := f.Links[2]; l.Link != "broken" || l.Failure.Code == 0 || l.Failure.Do == "" || l.Failure.Error == "" {
		t.Errorf("the broken link: %+v, %+v", l, l.Failure)
	}
	first := f.Links[2].Failure.At
	// It is started again by itself, too, and then has not ended.
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		code, stdout, stderr := invoke(t, nil, "agent", "retry", "broken", "--links="+a.file)
		if code == cli.ExitOK && strings.Contains(stdout, "starts broken again within 10s. It had ended with exit code") {
			break
		}
		if !strings.Contains(stderr, "it has not ended, as far as is known") || time.Since(began) > far {
			t.Fatalf("retry: %d %s %s", code, stdout, stderr)
		}
	}
	a.until("the broken link has ended again", func(f *fleet) bool { return f.Links[2].Failure != nil && f.Links[2].Failure.At.After(first) })
	for link, want := range map[string]string{"a": "it has not ended, as far as is known (running: ", "x": "the file does not have it"} {
		if code, _, stderr := invoke(t, nil, "agent", "retry", link, "--links="+a.file); code != cli.ExitUnexpected || !strings.Contains(stderr, want) {
			t.Errorf("retry %s: %d %s", link, code, stderr)
		}
	}

	if code, stdout, stderr := invoke(t, nil, "agent", "drain", "m2", "--links="+a.file); code != cli.ExitOK || !strings.Contains(stdout, "m2 is drained") {
		t.Errorf("drain: %d %s %s", code, stdout, stderr)
	}
	a.until("m2 has none", spread("m1=3", "m2=0", "m3=3"))
	a.mirrors(2, "a", "b", "c", "d", "e")
	_, stdout, _ := invoke(t, nil, "agent", "status", "--links="+a.file)
	for _, want := range []string{"group links, coordinator: m", "m2      drained  0", "moved: m2 drains"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the status has no %q:\n%s", want, stdout)
		}
	}
	if code, stdout, stderr := invoke(t, nil, "agent", "undrain", "m2", "--links="+a.file); code != cli.ExitOK || !strings.Contains(stdout, "m2 gets links again") {
		t.Errorf("undrain: %d %s %s", code, stdout, stderr)
	}
	a.until("m2 has two again", spread("m1=2", "m2=2", "m3=2"))
	a.end("m1")
	a.until("m1 has gone", spread("m2=3", "m3=3"))
	a.mirrors(3, "a", "b", "c", "d", "e")
	a.end("m2")
	a.end("m3")
	f = a.status()
	if l := f.Links[0]; l.Holder != nil || f.Coordinator != nil {
		t.Errorf("after the end: %+v, %+v", f.Coordinator, l)
	}
}

// servesLinks checks what an agent shows of its links a and c.
func servesLinks(t *testing.T, address string) {
	t.Helper()
	if rows := rowsAt(t, address); !slices.ContainsFunc(rows.Links, func(r linkRow) bool { return r.Link == "c" && r.From == "process" && r.Page == "link/c/" }) {
		t.Errorf("links: %+v", rows)
	}
	if code, body := get(t, "http://"+address+"/link/c/requests"); code != http.StatusOK || body != "[]\n" {
		t.Errorf("requests of c: %d %s", code, body)
	}
	if _, body := get(t, "http://"+address+"/metrics"); !strings.Contains(body, `replicator_state{link="a",state="steady"} 1`) || strings.Count(body, "# TYPE go_goroutines ") != 1 {
		t.Errorf("metrics: %s", body)
	}
}

// TestAgentFile: SIGHUP makes the process read its file again. New links run, removed ones
// end, changed ones run with the new settings, and the others are not disturbed. A typo
// changes nothing.
func TestAgentFile(t *testing.T) {
	a := newAgents(t)
	a.write("a", "b", "c")
	a.start("m1")
	l := a.started["m1"]
	a.until("it runs three", spread("m1=3"))
	a.mirrors(1, "a", "b", "c")
	address := ""
	for line := range strings.Lines(l.log.String()) {
		var fields struct{ Msg, Listen string }
		if json.Unmarshal([]byte(line), &fields) == nil && fields.Msg == "serving status, health and metrics" {
			address = fields.Listen
		}
	}
	started := func(link string) int {
		return strings.Count(l.log.String(), `"msg":"starting","link":"`+link+`"`)
	}

	a.write("a", "c writers: 3", "d")
	must.Succeed(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	l.await("the links file was read again")
	a.until("d runs, and b does not", func(f *fleet) bool {
		return slices.EqualFunc(f.Links, []string{"a", "c", "d"}, func(l fleetLink, want string) bool { return l.Link == want && l.Holder != nil })
	})
	// The plan is ahead of the links.
	awaitThat(t, func() bool {
		return started("c") == 2 && started("d") == 1 && strings.Contains(endsOf(l.log.String()), `"link":"b"`)
	}, "c and d are not started, or b does not end")
	a.mirrors(2, "a", "c")
	insert(t, a.source, "b", "c", bson.D{{Key: "_id", Value: 2}})
	for link, want := range map[string]int{"a": 1, "b": 1, "c": 2, "d": 1} {
		if got := started(link); got != want {
			t.Errorf("%s was started %d times, want %d", link, got, want)
		}
	}
	if n := countDocs(t, a.target, "b", "c"); n != 1 {
		t.Errorf("the link that was removed has mirrored: %d documents", n)
	}

	a.write("a", "c writers: 3", "d wirters: 4")
	must.Succeed(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	fields := l.await("the links file cannot be used: the links remain as they are")
	if text, _ := fields["error"].(string); !strings.Contains(text, `links.yaml line 17: there is no setting "wirters"; did you mean "writers"?`) {
		t.Errorf("error: %s", text)
	}
	a.mirrors(3, "a", "c")
	if code, body := get(t, "http://"+address+"/healthz"); code != http.StatusOK || !strings.Contains(body, `there is no setting "wirters"`) {
		t.Errorf("health: %d %s", code, body)
	}
	if code, body := get(t, "http://"+address+"/status/c"); code != http.StatusOK || !strings.Contains(body, `"writers":3`) {
		t.Errorf("c: %d %s", code, body)
	}
	servesLinks(t, address)
	// A link that is told to end in its copy has not drained.
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, body := get(t, "http://"+address+"/status/d"); strings.Contains(body, `"state":"steady"`) {
			break
		} else if time.Since(began) > far {
			t.Fatalf("d: %s", body)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	a.end("m1")
}

// endsOf returns the lines of a log about links that have ended because they have other settings, or none, now.
func endsOf(log string) string {
	var ends strings.Builder
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"msg":"the link's settings have changed"`) || strings.Contains(line, `"msg":"this process no longer runs the link`) {
			ends.WriteString(line)
		}
	}
	return ends.String()
}

// A command line that cannot work ends before anything is connected.
func TestAgentUsage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "links.yaml")
	must.Succeed(t, os.WriteFile(file, []byte(twoLinks), 0o600))
	for _, tc := range []struct {
		args string
		want string
	}{
		{"", "--links is missing"},
		{"--links=none.yaml", "read the links in none.yaml: no such file"},
		{"--links=" + file + " --listen=x", "--listen"},
		{"--links=" + file + " --max-links=0", "--max-links: 0 is not from 1 to 1000"},
		{"--links=" + file + " --max-links=9 --memory=1GiB", "raise it, or lower --max-links"},
	} {
		code, _, stderr := invoke(t, nil, append([]string{"agent"}, strings.Fields(tc.args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%s: %d %s", tc.args, code, stderr)
		}
	}
}
