package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// relayed waits until the relay log of a link, as flags, has everything that a source has.
func relayed(t *testing.T, source *mongosim.Set, link []string) {
	t.Helper()
	at, inc, _ := tell(t, source, "admin", bson.D{{Key: "ping", Value: 1}}).Lookup("operationTime").TimestampOK()
	awaitThat(t, func() bool {
		var sec, i uint32
		_, text, refused := invoke(t, nil, slices.Concat([]string{"promote", "--dry-run", "--source-is-gone"}, link)...)
		_, point, exact := strings.Cut(text, "exact up to ")
		if !exact {
			_, point, _ = strings.Cut(refused, "has the entries up to ")
		}
		n, _ := fmt.Sscanf(point, "%d:%d", &sec, &i)
		return n == 2 && (sec > at || sec == at && i >= inc)
	}, "the relay log has not come to have everything")
}

// TestPromoteStuck: an entry of the relay log that cannot be applied keeps a link from being promoted with that log. The message says how
// it is promoted to what comes before it, and that works.
func TestPromoteStuck(t *testing.T) {
	source, target := twoSets(t)
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 1}})
	link := []string{
		"--source=" + source.URI(), "--target=" + target.URI(), "--link=test", "--include=shop", "--map=shop.a=store.a", "--spool-dir=" + t.TempDir(),
	}
	run := slices.Concat(link, []string{"--relay-log=64MiB", "--await=100ms", "--listen=127.0.0.1:0"})
	l := startLink(t, slices.Concat(run, []string{"--start-at=copy"})...)
	awaitLink(l)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	l = startLink(t, append(run, "--delay=1h")...)
	l.await("state changed", "to", "steady")
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 2}})
	relayed(t, source, link)
	said(t, cli.ExitOK, `exact up to [^\n]*, if the target accepts what the relay log has\.\n(.|\n)*Not tried: [1-9]\d* entries of the relay log`, nil,
		slices.Concat([]string{"promote", "--source-is-gone", "--dry-run"}, link)...)
	at, inc, _ := tell(t, source, "admin", bson.D{{Key: "ping", Value: 1}}).Lookup("operationTime").TimestampOK()
	tell(t, source, "shop", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "a"}, {Key: "pipeline", Value: bson.A{}}})
	insert(t, source, "shop", "a", bson.D{{Key: "_id", Value: 3}})
	relayed(t, source, link)
	l.kill(failure.ErrStopped)
	l.end()
	promote := append([]string{"promote", "--source-is-gone"}, link...)
	if text := said(t, failure.ExitUnsupported, `a promotion ends there(.|\n)*the view shop\.v reads shop\.a(.|\n)*--spool-dir`, nil, append(slices.Clip(promote), "--dry-run")...); text != "" {
		t.Errorf("a dry run promises a recovery point that the promotion does not reach:\n%s", text)
	}
	awaitCount(t, target, "store", "a", 1)
	stuck := func() {
		said(t, failure.ExitUnsupported, `the view shop\.v reads shop\.a(.|\n)*--spool-dir`, nil, promote...)
		awaitCount(t, target, "store", "a", 2)
	}
	stuck()
	// A promotion that is stuck may end before it has stored how far it has come.
	awaitThat(t, func() bool {
		stuck()
		var sec, i uint32
		_, text, _ := invoke(t, nil, append(slices.Clip(promote), "--dry-run", "--spool-dir="+t.TempDir())...)
		_, point, _ := strings.Cut(text, "everything up to ")
		n, _ := fmt.Sscanf(point, "%d:%d", &sec, &i)
		return n == 2 && (sec > at || sec == at && i > inc)
	}, "no promotion has stored what it has applied before the view")
	said(t, cli.ExitOK, `^Link test was promoted (.|\n)*NOT EXACT\. The target has everything up to (.|\n)*there is none in`, nil, append(slices.Clip(promote), "--spool-dir="+t.TempDir())...)
	said(t, cli.ExitFailed, `"_id":{"\$numberInt":"3"}(.|\n)* 2 operations after`, nil, append([]string{"rewind"}, link...)...)
	// The writes of another set are none that the target lacks, whatever optimes they have.
	said(t, exitResync, `another replica set than the link was made for`, nil, slices.Concat([]string{"rewind", "--source=" + target.URI()}, link[1:])...)
}
