//go:build unix

package cli

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// crashCommand has a goroutine that panics, which no other one can recover.
type crashCommand struct{}

// Run implements a command.
func (crashCommand) Run() error {
	var work sync.WaitGroup
	work.Go(func() { panic("an invariant is broken") })
	work.Wait()
	return nil
}

// TestPanicAborts: a panic ends the process in a way of its own: with Go's code 2, which is that of a wrong
// command line, a supervisor would leave it.
func TestPanicAborts(t *testing.T) {
	t.Parallel()
	const crashes = "CLI_TEST_CRASHES"
	if os.Getenv(crashes) != "" {
		os.Args = []string{"program", "crash"}
		Program{Name: "program", Commands: &struct {
			Crash crashCommand `cmd:""`
		}{}}.Main(t.Context())
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -c 0; exec "$0" -test.run='^TestPanicAborts$'`, os.Args[0])
	cmd.Env = append(os.Environ(), crashes+"=1")
	out, err := cmd.CombinedOutput()
	ended, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("it ended with %v:\n%s", err, out)
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGABRT {
		t.Errorf("it ended with %v", ended)
	}
	if !strings.Contains(string(out), "panic: an invariant is broken") {
		t.Errorf("it does not say why:\n%s", out)
	}
}
