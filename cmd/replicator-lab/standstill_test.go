package main

import (
	"bufio"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestServeStandsStill: a set whose process stood still for longer than the
// election timeout, all members at once, has the same primary afterwards.
func TestServeStandsStill(t *testing.T) {
	t.Parallel()
	cmd := process(t, "serve", "--port=0", "--verbose")
	var stderr atOnce
	cmd.Stderr = &stderr
	uri, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	if _, err := bufio.NewReader(uri).ReadString('\n'); err != nil {
		t.Error(err)
	}
	for range 3 {
		must.Succeed(t, cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(1500 * time.Millisecond)
		must.Succeed(t, cmd.Process.Signal(syscall.SIGCONT))
		time.Sleep(300 * time.Millisecond)
	}
	must.Succeed(t, cmd.Process.Signal(syscall.SIGTERM))
	if got := exitCodeOf(t, cmd.Wait()); got != cli.ExitOK {
		t.Errorf("got exit code %d", got)
	}
	said := stderr.text
	if strings.Count(said, "msg=elected") != 1 || strings.Contains(said, `msg="stepped down"`) || strings.Count(said, `msg="standing for election"`) != 1 {
		t.Errorf("the members held an election for the standstill:\n%s", said)
	}
}
