package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// copies is for a link that copies, with a spool of its own.
func copies(t *testing.T, source, target *mongosim.Set, more ...string) (args []string, spool string) {
	t.Helper()
	spool = t.TempDir()
	args = append(uris(source, target), "--start-at=copy", "--await=100ms", "--spool-dir="+spool, "--spool-free=16MiB")
	return append(args, more...), spool
}

// fill gives a set documents.
func fill(t *testing.T, set *mongosim.Set, db, coll string, docs int) {
	t.Helper()
	const chunk = 500
	for from := 0; from < docs; from += chunk {
		var list []any
		for i := from; i < min(docs, from+chunk); i++ {
			list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i % 7}, {Key: "pad", Value: strings.Repeat("p", 200)}})
		}
		insert(t, set, db, coll, list...)
	}
}

// checkCopies checks what a link that copies says before it starts: it needs one more
// setting. It returns the settings with that.
func checkCopies(t *testing.T, args []string, spool string) []string {
	t.Helper()
	code, stdout, stderr := invoke(t, nil, append([]string{"run", "--log-format=text"}, args...)...)
	if want := "FAIL target data: the target has a collection where the link will write: shop.old. Drop the collections, or give --drop-existing"; code != cli.ExitCheck || !strings.Contains(stderr, want) {
		t.Fatalf("code %d, want %q in\n%s%s", code, want, stdout, stderr)
	}
	args = append(args, "--drop-existing")
	code, stdout, _ = invoke(t, nil, append([]string{"run", "--check"}, args...)...)
	for _, want := range []string{"OK   source data: 2 databases will be copied: crm, shop", "WARN target data: a collection will be dropped before the copy: shop.old", "OK   spool: " + filepath.Join(spool, "test") + " has room for"} {
		if code != cli.ExitOK || !strings.Contains(stdout, want) {
			t.Errorf("code %d, want %q in\n%s", code, want, stdout)
		}
	}
	if left, err := os.ReadDir(spool); err != nil || len(left) > 0 {
		t.Errorf("the checks have left %v, %v", left, err)
	}
	return args
}

// A link copies by default, resumes its copy where it was, at the pace that is
// requested, and says how far it is.
func TestRunCopies(t *testing.T) {
	source, target := twoSets(t)
	fill(t, source, "shop", "a", 3000)
	tell(t, source, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}}})
	fill(t, source, "crm", "b", 10)
	insert(t, target, "shop", "old", bson.D{{Key: "_id", Value: 1}})

	args, spool := copies(t, source, target, "--max-ops-per-second=300", "--flush-docs=50")
	args = checkCopies(t, args, spool)

	l := startLink(t, args...)
	awaitSome(t, target, "shop", "a")
	l.kill(failure.ErrStopped)
	if code := l.end(); code != failure.ExitNotDrained {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	if n := countDocs(t, target, "shop", "a"); n == 3000 {
		t.Fatal("all was copied, whatever the limit is")
	}
	if n := countDocs(t, target, "shop", "old"); n != 0 {
		t.Error("what the target had is still there")
	}
	on := []string{"--target=" + target.URI()}
	code, stdout, _ := invoke(t, nil, append([]string{"links"}, on...)...)
	if code != cli.ExitOK || !regexp.MustCompile(`not consistent: copying, [01] of 2 collections done\n`).MatchString(stdout) {
		t.Errorf("code %d, %s", code, stdout)
	}
	code, stdout, stderr := invoke(t, nil, append([]string{"run", "--check"}, args...)...)
	if want := regexp.MustCompile(`OK   link: "test" resumes its copy of 127.0.0.1:\d+, started \S+Z: phase copying, [01] of 2 collections are done\n`); code != cli.ExitOK || !want.MatchString(stdout) {
		t.Errorf("code %d, want %s in\n%s%s", code, want, stdout, stderr)
	}

	l = startLink(t, args...)
	limit(t, target, "0")
	insert(t, source, "shop", "late", bson.D{{Key: "_id", Value: 1}})
	l.await("the target is consistent")
	awaitLink(l)
	awaitCount(t, target, "shop", "late", 1)
	if n, m := countDocs(t, target, "shop", "a"), countDocs(t, target, "crm", "b"); n != 3000 || m != 10 {
		t.Errorf("%d and %d documents were copied", n, m)
	}
	code, stdout, _ = invoke(t, nil, append([]string{"links"}, on...)...)
	if code != cli.ExitOK || strings.Contains(stdout, "not consistent") {
		t.Errorf("code %d, %s", code, stdout)
	}

	repair(t, source, target)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
}

// repair copies one collection again, which is damaged.
func repair(t *testing.T, source, target *mongosim.Set) {
	t.Helper()
	tell(t, target, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "x", Value: 3}}}, {Key: "limit", Value: 0}}}}})
	// The command does not see a copy that takes less than a second.
	limit(t, target, "100")
	again := startCommand(t, nil, "resync", "--link=test", "--namespace=shop.a", "--target="+target.URI())
	again.see("shop.a is being copied")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: "new"}})
	limit(t, target, "0")
	again.see("shop.a is the same as the source's again")
	if code := again.end(); code != cli.ExitOK {
		t.Errorf("code %d", code)
	}
	if n := countDocs(t, target, "shop", "a"); n != 3001 {
		t.Errorf("%d documents after it was copied again", n)
	}
}

// limit limits the copies of a link, to documents per second.
func limit(t *testing.T, target *mongosim.Set, perSecond string) {
	t.Helper()
	if code, _, stderr := invoke(t, nil, "throttle", "--link=test", "--max-ops-per-second="+perSecond, "--target="+target.URI()); code != cli.ExitOK {
		t.Errorf("code %d, %s", code, stderr)
	}
}

// awaitSome waits for a first document.
func awaitSome(t *testing.T, set *mongosim.Set, db, coll string) {
	t.Helper()
	awaitThat(t, func() bool { return countDocs(t, set, db, coll) > 0 }, "%s.%s stays empty", db, coll)
}
