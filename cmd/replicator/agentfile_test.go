package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

const twoLinks = `
defaults:
  target: mongodb://t.example/?replicaSet=t
  writers: 4
  start-at: now
links:
  a:
    source: mongodb://a.example/?replicaSet=a
    include: [shop, "crm.*"]
  b:
    source: mongodb://b.example/?replicaSet=b
    writers: 8
`

func parsedLinks(t *testing.T, text string, environ ...string) (*linksFile, error) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", "/caches")
	return parseLinks("links.yaml", []byte(text), environ)
}

// A link's own settings come before the defaults, these before the environment, that before what
// run has by default.
func TestLinksFile(t *testing.T) {
	f := must.Get(parsedLinks(t, twoLinks, "REPLICATOR_WRITERS=2", "REPLICATOR_FLUSH_DOCS=7", "REPLICATOR_LINK=x", "REPLICATOR_MEMORY=9GiB"))(t)
	if len(f.links) != 2 {
		t.Fatalf("%d links", len(f.links))
	}
	a, b := f.links[0], f.links[1]
	if a.name != "a" || a.Link != "a" || a.Writers != 4 || !slices.Equal(a.Include, []string{"shop", "crm.*"}) || a.FlushDocs != 7 || a.BatchOps != 5000 || a.Memory != 0 {
		t.Errorf("a: %+v", a.runFlags)
	}
	if b.Link != "b" || b.Writers != 8 || b.Target != a.Target || b.Source == a.Source || b.Include != nil {
		t.Errorf("b: %+v", b.runFlags)
	}
	if a.settings == b.settings || a.settings != must.Get(parsedLinks(t, "# a comment\n"+twoLinks, "REPLICATOR_FLUSH_DOCS=7"))(t).links[0].settings {
		t.Error("settings are not told apart, or by their lines")
	}
	if f.Group != "links" || f.Control != a.Target || f.ControlDB != "replicator" || f.LeaseTTL != 10*time.Second {
		t.Errorf("fleet: %+v", f.fleetFlags)
	}
	f = must.Get(parsedLinks(t, "control: mongodb://u@c.example/?replicaSet=c\ncontrol-db: fleet\ngroup: east\nlease-ttl: 20s\n"+
		strings.ReplaceAll(twoLinks, "writers: 8", "target: mongodb://other.example/?replicaSet=o")))(t)
	if f.Control != "mongodb://u@c.example/?replicaSet=c" || f.ControlDB != "fleet" || f.Group != "east" || f.LeaseTTL != 20*time.Second {
		t.Errorf("fleet: %+v", f.fleetFlags)
	}
}

// One name may stand for links of two targets, with link: for what it is called there.
func TestLinksOfTwoTargets(t *testing.T) {
	const text = `
control: mongodb://c.example/?replicaSet=c
links:
  east: {link: shop, source: "mongodb://a.example/?replicaSet=a", target: "mongodb://t1.example/?replicaSet=t"}
  west: {link: shop, source: "mongodb://a.example/?replicaSet=a", target: "mongodb://t2.example/?replicaSet=t"}
`
	f := must.Get(parsedLinks(t, text))(t)
	if f.links[0].Link != "shop" || f.links[1].Link != "shop" {
		t.Errorf("%+v", f.links)
	}
	for _, same := range []string{"mongodb://t1.example/?replicaSet=t", "mongodb://x.example,T1.example/?replicaSet=t"} {
		_, err := parsedLinks(t, strings.ReplaceAll(text, "mongodb://t2.example/?replicaSet=t", same))
		if err == nil || err.Error() != "links.yaml line 5: links west and east (line 4) are both shop in the same target: give one of them another link: NAME" {
			t.Errorf("%s: %v", same, err)
		}
	}
}

// Each fault is an error that names its line.
func TestLinksFileFaults(t *testing.T) {
	const source = "source: mongodb://a.example/?replicaSet=a"
	for _, tc := range []struct{ name, from, to, want string }{
		{"unknown setting", "writers: 8", "writres: 8", `links.yaml line 12: there is no setting "writres"; did you mean "writers"?`},
		{"unknown default", "writers: 4", "wirters: 4", `links.yaml line 4: there is no setting "wirters"; did you mean "writers"?`},
		{"unknown at the top", "defaults:", "default:", `links.yaml line 2: there is no setting "default"; did you mean "defaults"?`},
		{"no number", "writers: 8", "writers: many", `links.yaml line 12: link b: writers: "many" is not a whole number`},
		{"octal", "writers: 8", "writers: 010", `links.yaml line 12: link b: writers: 010 is octal to some readers`},
		{"out of range", "writers: 8", "writers: 800", "links.yaml line 10: link b: --writers: 800 is not from 1 to 256"},
		{"bad default", "writers: 4", "transactions: some", `links.yaml line 4: link a: transactions: "some" is not one of atomic, relaxed`},
		{"one link twice", "  b:\n", "  a:\n", `links.yaml line 10: "a" is there twice, first in line 7`},
		{"one setting twice", "writers: 8", "writers: 8\n    writers: 9", `links.yaml line 13: "writers" is there twice, first in line 12`},
		{"of the process", "writers: 8", "memory: 1GiB", `links.yaml line 12: "memory" is a setting of the process, not of a link: use replicator agent --memory`},
		{"of one run", "writers: 4", "takeover: true", `links.yaml line 4: "takeover" is for replicator run, not for a link of an agent`},
		{"a name for all", "writers: 4", "link: x", "links.yaml line 4: defaults: each link has a name of its own"},
		{"bad name", "  b:\n", "  b/c:\n", `links.yaml line 10: link "b/c": a name has letters`},
		{"no source", source, "writers: 3", "links.yaml line 7: link a: --source is missing"},
		{"several targets", "writers: 8", "target: mongodb://other.example/?replicaSet=o", "links.yaml line 10: links b and a (line 7) have different targets, so that control: has to name"},
		{"no links", "links:", "links: {}\ngroup: |", "there is no link"},
		{"links without names", "links:\n", "links: [a, b]\ngroup: |\n", "links.yaml line 6: links: want lines of the form NAME: VALUE"},
		{"a link without settings", "    writers: 8\n", "", ""},
		{"bad group", "defaults:", "group: a/b\ndefaults:", `group "a/b": want 1 to 120 bytes, without /`},
		{"bad lease", "defaults:", "lease-renew: 5s\ndefaults:", "lease-ttl 10s, lease-renew 5s: want"},
		{"another document", "links:", "---\nlinks:", "a second document starts here"},
	} {
		text := strings.Replace(twoLinks, tc.from, tc.to, 1)
		if text == twoLinks {
			t.Fatalf("%s changes nothing", tc.name)
		}
		switch _, err := parsedLinks(t, text); {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v\nwant %s", tc.name, err, tc.want)
		}
	}
	_, err := parsedLinks(t, strings.Replace(strings.Replace(twoLinks, "writers: 8", "x: 1", 1), "writers: 4", "y: 2", 1))
	if err == nil || strings.Count(err.Error(), "there is no setting") != 2 {
		t.Errorf("not all faults: %v", err)
	}
	if _, err = parsedLinks(t, twoLinks, "REPLICATOR_FLUSH_DOCS=x"); err == nil || !strings.HasPrefix(err.Error(), "environment REPLICATOR_FLUSH_DOCS: ") {
		t.Errorf("environment: %v", err)
	}
}

// A password file that is missing on this machine is a fault of that link alone; neither errors
// nor log messages about the file contain a password.
func TestLinksFileSecrets(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "password")
	text := strings.Replace(twoLinks, "    writers: 8", "    source-username: u\n    source-password-file: "+secret, 1)
	f := must.Get(parsedLinks(t, text))(t)
	if f.links[0].fault != nil || f.links[1].fault == nil {
		t.Fatalf("faults: %v, %v", f.links[0].fault, f.links[1].fault)
	}
	before := f.links[1].settings
	must.Succeed(t, os.WriteFile(secret, []byte("sesame"), 0o600))
	if f = must.Get(parsedLinks(t, text))(t); f.links[1].fault != nil || f.links[1].settings == before {
		t.Errorf("%v: it is not started once the file is there", f.links[1].fault)
	}
	path := filepath.Join(dir, "links.yaml")
	must.Succeed(t, os.WriteFile(path, []byte(strings.ReplaceAll(twoLinks, "mongodb://", "mongodb://u:sesame@")), 0o600))
	for _, args := range [][]string{{"agent", "--check"}, {"agent", "--check", "--max-links=99", "--memory=1GiB"}} {
		_, stdout, stderr := invoke(t, nil, append(args, "--links="+path)...)
		if all := stdout + stderr; strings.Contains(all, "sesame") || len(args) == 2 && !strings.Contains(all, "2 links, group links, control plane mongodb://u:***@t.example") {
			t.Errorf("%q printed %s", args, all)
		}
	}
}

// The memory is divided by as many links as may run.
func TestAgentMemory(t *testing.T) {
	const mib = 1 << 20
	c := &agentStartCommand{MaxLinks: 4, Memory: 1136 * mib}
	m, perLink, err := c.memory(nil)
	if err != nil || m.total != 1136*mib || perLink != 320*mib {
		t.Errorf("%d MiB, %d for each, %v", m.total/mib, perLink/mib, err)
	}
	c.MaxLinks = 7
	if _, _, err = c.memory(nil); err == nil || !strings.Contains(err.Error(), cli.Size(memory.OfProcess(memory.MinLink, 7)).String()) {
		t.Errorf("got %v", err)
	}
	c.Memory = cli.Size(memory.OfProcess(memory.MinLink, 7))
	if _, perLink, err = c.memory(nil); err != nil || perLink != memory.MinLink {
		t.Errorf("%d for each, %v", perLink, err)
	}
	c.MaxLinks = 0
	if _, _, err = c.memory(nil); err == nil {
		t.Error("no links are accepted")
	}
}

// What docs/exit-codes.md says of restarts is what an agent does.
func TestRestartHelps(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/exit-codes.md"))(t))
	_, page, _ = strings.Cut(page, "## Supervisors")
	for code := 1; code <= 11; code++ {
		if got, want := restartHelps(code), slices.Contains([]int{1, 8, 10}, code); got != want {
			t.Errorf("code %d: %v", code, got)
		}
	}
	for _, row := range []string{"| 1, 8, 10 | A restart can help. |", "| 2, 6, 7, 9, 11 | No"} {
		if !strings.Contains(page, row) {
			t.Errorf("the page has no row %s", row)
		}
	}
}
