package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
)

// TestOtherLinks: a new link is not told to drop what another link mirrors to while a process runs that one, whatever
// its filters are; and it says so once no process does. A link whose collections are others is none of its business.
func TestOtherLinks(t *testing.T) {
	source, target := twoSets(t)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}})
	insert(t, source, "shop", "carts", bson.D{{Key: "_id", Value: 1}})
	ends := []string{"--source=" + source.URI(), "--target=" + target.URI(), "--selection-timeout=1m", "--spool-dir=" + t.TempDir()}
	l := startLink(t, append(ends, "--link=old", "--include=shop.orders", "--include=crm")...)
	l.await("state changed", "to", "steady")

	check := func(code int, says string, args ...string) {
		t.Helper()
		got, stdout, stderr := invoke(t, nil, append(append([]string{"run", "--check", "--link=new"}, ends...), args...)...)
		if says == "" {
			if got != code || strings.Contains(stdout, "other links") {
				t.Errorf("%v: code %d, want %d and nothing of other links:\n%s%s", args, got, code, stdout, stderr)
			}
			return
		}
		if got != code || !strings.Contains(stdout, says) {
			t.Errorf("%v: code %d, want %d and %q in\n%s%s", args, got, code, says, stdout, stderr)
		}
	}
	check(cli.ExitCheck, `FAIL other links: "old", which a process runs, mirrors to shop.orders, which would be dropped. Stop `,
		"--include=shop", "--drop-existing")
	check(cli.ExitOK, `WARN other links: "old", which a process runs, mirrors to shop.orders. Links`,
		"--include=shop", "--allow-existing")
	check(cli.ExitOK, "", "--include=shop.carts")
	check(cli.ExitOK, "", "--include=shop", "--map=shop=store")

	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	check(cli.ExitOK, `WARN other links: "old" mirrors to shop.orders. Make sure that no process runs it`,
		"--include=shop", "--drop-existing")
}

// TestOtherLinksOfOneThatExists: a link that exists says so, too, and starts: the other one may have begun after it. What the other one mirrors
// elsewhere, that no process runs it, or that it has ended, is none of its business.
func TestOtherLinksOfOneThatExists(t *testing.T) {
	source, target := twoSets(t)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}})
	insert(t, source, "shop", "carts", bson.D{{Key: "_id", Value: 1}})
	ends := []string{"--source=" + source.URI(), "--target=" + target.URI(), "--selection-timeout=1m", "--spool-dir=" + t.TempDir()}
	lists := map[string][]string{"old": {"--link=old", "--include=shop.orders"}, "carts": {"--link=carts", "--include=shop.carts"}, "new": {"--link=new", "--include=shop.o*", "--allow-existing"}}
	begin := func(link string) *runLink {
		l := startLink(t, append(ends, lists[link]...)...)
		l.await("state changed", "to", "steady")
		return l
	}
	end := func(l *runLink) {
		t.Helper()
		l.drain()
		if code := l.end(); code != cli.ExitOK {
			t.Fatalf("code %d\n%s", code, &l.log)
		}
	}
	check := func(link, says string) {
		t.Helper()
		code, stdout, stderr := invoke(t, nil, append(append([]string{"run", "--check"}, ends...), lists[link]...)...)
		if code != cli.ExitOK || strings.Contains(stdout, "other links") != (says != "") || !strings.Contains(stdout, says) {
			t.Errorf("%s: code %d, %q in\n%s%s", link, code, says, stdout, stderr)
		}
	}
	const says = `WARN other links: "new", which a process runs, mirrors to shop.orders. Links that write to the same collections corrupt each other's data: stop one of them`
	end(begin("old"))
	end(begin("carts"))
	newer := begin("new")
	check("old", says)
	lists["old"] = append(lists["old"], "--drop-existing")
	check("old", says)
	check("carts", "")
	old := begin("old") // it runs nevertheless
	check("new", strings.ReplaceAll(says, `"new"`, `"old"`))
	end(old)
	end(newer)
	check("old", "")
}

// TestOtherSettings: a link that exists says with which settings it was made, in the form of flags.
func TestOtherSettings(t *testing.T) {
	source, target := twoSets(t)
	insert(t, source, "shop", "orders", bson.D{{Key: "_id", Value: 1}})
	ends := append(uris(source, target), "--spool-dir="+t.TempDir())
	l := startLink(t, append(ends, "--include=shop.o*", "--include=crm", "--exclude=crm.log", "--map=shop=store")...)
	l.await("state changed", "to", "steady")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"--include=shop"}, "Use the settings that the link was created with: --include='shop.o*' --include=crm --exclude=crm.log --map=shop=store"},
		{[]string{"--include=shop.o*", "--include=crm", "--exclude=crm.log", "--map=shop=store", "--unique-indexes=serialized"}, "created with other settings: --unique-indexes=relaxed"},
	} {
		code, stdout, stderr := invoke(t, nil, append(append([]string{"run", "--check"}, ends...), tt.args...)...)
		if code != cli.ExitCheck || !strings.Contains(stdout, tt.says) {
			t.Errorf("%v: code %d, %q is not in\n%s%s", tt.args, code, tt.says, stdout, stderr)
		}
	}
	// A promotion, whose source is gone, can make no new copy.
	const says = "the link was created with other settings\nUse the settings that the link was created with: --include='shop.o*' --include=crm --exclude=crm.log --map=shop=store, and --unique-indexes=relaxed.\n"
	code, stdout, stderr := invoke(t, nil, append([]string{"promote", "--include=shop", "--source-is-gone", "--ask-for=1s"}, ends...)...)
	if code != cli.ExitCheck || !strings.Contains(stderr, says) {
		t.Errorf("promote: code %d, %q is not in\n%s%s", code, says, stdout, stderr)
	}
}
