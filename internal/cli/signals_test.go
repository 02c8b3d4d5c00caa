//go:build unix

package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// waits makes the test a program that waits.
const waits = "CLI_TEST_WAITS"

// waitCommand ends with its context.
type waitCommand struct{}

// Run implements a command.
func (waitCommand) Run(ctx context.Context, out Output) error {
	_, _ = fmt.Fprintln(out.Results, "it waits")
	<-ctx.Done()
	_, _ = fmt.Fprintln(out.Results, "it drains, deaf:", signal.Ignored(syscall.SIGHUP))
	return nil
}

// TestHangup: a terminal that is closed ends a command as SIGTERM does: by itself, not by the signal. A process that
// ignores that, as under nohup, goes on.
func TestHangup(t *testing.T) {
	t.Parallel()
	if os.Getenv(waits) != "" {
		os.Args = []string{"program", "wait"}
		Program{Name: "program", Commands: &struct {
			Wait waitCommand `cmd:""`
		}{}}.Main(t.Context())
	}
	for _, deaf := range []bool{false, true} {
		script, signals := `exec "$0" -test.run='^TestHangup$'`, []syscall.Signal{syscall.SIGHUP}
		if deaf {
			script, signals = "trap '' HUP; "+script, append(signals, syscall.SIGTERM)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", script, os.Args[0])
		cmd.Env = append(os.Environ(), waits+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, last := bufio.NewScanner(out), ""
		for lines.Scan() {
			if last = lines.Text(); last == "it waits" {
				for _, s := range signals {
					if err := cmd.Process.Signal(s); err != nil {
						t.Error(err)
					}
				}
			}
		}
		if err := cmd.Wait(); err != nil || last != fmt.Sprint("it drains, deaf: ", deaf) {
			t.Errorf("%s: after %v it ended with %v; it printed %q last", script, signals, err, last)
		}
	}
}

// TestHangupOfPipeline: a terminal that is closed ends the programs of a pipeline in any order. One whose output nobody reads any
// more drains, too.
func TestHangupOfPipeline(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHangup$")
	cmd.Env = append(os.Environ(), waits+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "it waits"; {
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestHangupAgain: a second SIGHUP is not the signal to stop at once; SIGTERM after it is.
func TestHangupAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal), make(chan struct{})
		softly, hardly := 0, 0
		go obey(signals, done, func() bool { return true }, func(os.Signal) { softly++ }, func() { hardly++ })
		for i, s := range []os.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGHUP, syscall.SIGTERM} {
			signals <- s
			if i > 0 {
				time.Sleep(2 * SameSignal) // the second one counts as the same
			}
			synctest.Wait()
			if last := i == 4; softly != 1 || last != (hardly == 1) {
				t.Errorf("after signal %d: drains %d, stops %d", i, softly, hardly)
			}
		}
		close(done)
	})
}

// TestHangupCounts: SIGHUP neither ends a command that reads its file again by it, nor is it a second signal.
func TestHangupCounts(t *testing.T) {
	t.Parallel()
	for _, counts := range []bool{false, true} {
		signals, done := make(chan os.Signal), make(chan struct{})
		var sender sync.WaitGroup
		sender.Go(func() {
			signals <- syscall.SIGHUP
			close(done)
		})
		if got := oneSignal(signals, done, func() bool { return counts }) != nil; got != counts {
			t.Errorf("SIGHUP that counts, %t: %t", counts, got)
		}
		sender.Wait()
	}
	var reloads Ends
	reloads.Reloads() // in a process without signals it does nothing
}
