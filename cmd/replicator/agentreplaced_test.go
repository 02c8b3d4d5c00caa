package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestAgentReplacedLink: a link with --drop-existing in place of one of which a process still mirrors to the same collections starts once that
// one has drained, and is shown meanwhile.
func TestAgentReplacedLink(t *testing.T) {
	a := newAgents(t)
	insert(t, a.source, "a", "c", bson.D{{Key: "_id", Value: 1}})
	insert(t, a.source, "new", "c", bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 3}})
	elsewhere := startLink(t, "--link=a", "--include=a", "--source="+a.source.URI(), "--target="+a.target.URI(), "--selection-timeout=1m", "--spool-dir="+filepath.Dir(a.file))
	elsewhere.await("state changed", "to", "steady")
	a.write("a")
	a.start("m1") // its link stands by
	a.until("it runs one", spread("m1=1"))
	l := a.started["m1"]
	a.write("new drop-existing: true\n    map: [new=a]")
	must.Succeed(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	l.await("the links file was read again")
	f := a.until("the new link waits", func(f *fleet) bool { return len(f.Links) == 1 && f.Links[0].Failure != nil })
	if got := f.Links[0].Failure; got.Code != cli.ExitCheck || !got.Helps || !strings.Contains(got.Error, `"a", which a process runs`) || !strings.Contains(got.Do, "It is tried again until a has ended") {
		t.Errorf("shown: %+v", got)
	}
	elsewhere.drain()
	if code := elsewhere.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &elsewhere.log)
	}
	awaitThat(t, func() bool { return countDocs(t, a.target, "a", "c") == 2 }, "the new link has not copied")
	a.until("it runs", func(f *fleet) bool { return f.Links[0].Failure == nil })
	l.await("state changed", "to", "steady")
	a.end("m1")
}
