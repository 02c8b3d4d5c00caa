package main

import (
	"bufio"
	"io"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestClosedOutput: a link outlasts the program that reads its log, as one that collects logs and is restarted: it goes on,
// and drains.
func TestClosedOutput(t *testing.T) {
	a := newAgents(t)
	a.write("a")
	for name, args := range map[string][]string{
		"run":   {"run", "--link=b", "--include=b", "--source=" + a.source.URI(), "--target=" + a.target.URI(), "--spool-dir=" + t.TempDir(), "--listen="},
		"agent": {"agent", "--links=" + a.file, "--member=m1", "--memory=1GiB"},
	} {
		db := map[string]string{"run": "b", "agent": "a"}[name]
		insert(t, a.source, db, "c", bson.D{{Key: "_id", Value: 1}})
		cmd := process(t, append(args, "--log-format=json")...)
		log, results := must.Get(cmd.StderrPipe())(t), must.Get(cmd.StdoutPipe())(t)
		must.Succeed(t, cmd.Start())
		var all strings.Builder
		lines := bufio.NewScanner(io.TeeReader(log, &all))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() && !strings.Contains(lines.Text(), `"to":"steady"`) {
		}
		must.Succeed(t, log.Close())
		must.Succeed(t, results.Close())
		insert(t, a.source, db, "c", bson.D{{Key: "_id", Value: 2}})
		awaitThat(t, func() bool { return countDocs(t, a.target, db, "c") == 2 }, "%s does not mirror any more", name)
		must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
		if code := exitCodeOf(t, cmd.Wait()); code != cli.ExitOK {
			t.Errorf("%s: it ended with exit code %d\n%s", name, code, &all)
		}
	}
}
