package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestAgentHangup: a process of a fleet goes on after SIGHUP, whenever it comes: a supervisor takes a process that
// it has ended for one that was to end, and does not start it again.
func TestAgentHangup(t *testing.T) {
	a := newAgents(t)
	a.write("a")
	cmd := process(t, "agent", "--log-format=json", "--links="+a.file, "--member=m1", "--memory=1GiB")
	log := must.Get(cmd.StderrPipe())(t)
	must.Succeed(t, cmd.Start())
	var all strings.Builder
	lines, again := bufio.NewScanner(log), 0
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		all.WriteString(lines.Text() + "\n")
		switch {
		case strings.Contains(lines.Text(), `"msg":"starting","version"`):
			must.Succeed(t, cmd.Process.Signal(syscall.SIGHUP)) // before it has joined the fleet
		case strings.Contains(lines.Text(), `"msg":"this process runs the link"`), strings.Contains(lines.Text(), `"msg":"the links file was read again"`):
			if again++; again <= 2 {
				must.Succeed(t, cmd.Process.Signal(syscall.SIGHUP))
			} else if again == 3 {
				must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
			}
		}
	}
	must.Succeed(t, lines.Err())
	// The link may be in its copy, which does not drain.
	if code := exitCodeOf(t, cmd.Wait()); again < 3 || code != cli.ExitOK && code != failure.ExitNotDrained {
		t.Errorf("it ended with exit code %d, and has said %d times that it goes on\n%s", code, again, &all)
	}
}
