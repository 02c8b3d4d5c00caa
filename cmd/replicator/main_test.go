package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
)

const recordings = "../../testdata/corpus"

// asProgram makes the test binary the program itself.
const asProgram = "REPLICATOR_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// run runs one command line, until ctx is done, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return execute(cli.Ends{Soft: ctx, Hard: context.WithoutCancel(ctx)}, args, os.Environ(), stdout, stderr)
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // text that must be in there
	}{
		{"help", []string{"--help"}, cli.ExitOK, "Usage: replicator", ""},
		{"help of a command", []string{"oplog", "--help"}, cli.ExitOK, "--follow", ""},
		{"version", []string{"version"}, cli.ExitOK, "replicator ", ""},
		{"no command", nil, cli.ExitUsage, "", "--help"},
		{"unknown command", []string{"frobnicate"}, cli.ExitUsage, "", "frobnicate"},
		{"a command of replicator-lab", []string{"demo"}, cli.ExitUsage, "", "unexpected argument demo"},
		{"unknown flag", []string{"oplog", "--frobnicate"}, cli.ExitUsage, "", "--frobnicate"},
		{"bad value", []string{"oplog", "--limit=x"}, cli.ExitUsage, "", "--limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), tt.args, &stdout, &stderr); code != tt.code {
				t.Errorf("got exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("%q and %q are not in\n%s%s", tt.stdout, tt.stderr, &stdout, &stderr)
			}
			if (tt.code == cli.ExitOK) != (stderr.Len() == 0) {
				t.Errorf("exit code %d with the complaint %q", tt.code, &stderr)
			}
		})
	}
}

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
