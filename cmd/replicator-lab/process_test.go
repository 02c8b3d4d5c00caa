package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// process is the program as a process, for what the shell sees.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

func exitCodeOf(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return cli.ExitOK
}

func TestProgram(t *testing.T) {
	for arg, want := range map[string]int{"version": cli.ExitOK, "frobnicate": cli.ExitUsage} {
		if got := exitCodeOf(t, process(t, arg).Run()); got != want {
			t.Errorf("%s: got exit code %d, want %d", arg, got, want)
		}
	}
}

// TestInterrupt presses Ctrl-C when the first result is out: many are to come.
func TestInterrupt(t *testing.T) {
	cmd := process(t, "corpus", recordings)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	results, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, cmd.Start())
	if _, err := bufio.NewReader(results).ReadString('\n'); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if got := exitCodeOf(t, cmd.Wait()); got != cli.ExitUnexpected {
		t.Errorf("got exit code %d, want %d", got, cli.ExitUnexpected)
	}
	if !strings.Contains(stderr.String(), "stopped before it was done") {
		t.Errorf("got %q", &stderr)
	}
}
