package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

// TestBenchProcesses: a measurement uses ends in separate processes, which end with it,
// however it ends.
func TestBenchProcesses(t *testing.T) {
	race.Skip(t, "three processes of this program take long to start")
	if runtime.GOOS != "linux" {
		t.Skip("it looks for processes in /proc, which only Linux has")
	}
	forever := []string{"mirror", "--for=1m", "--json="}
	for _, tt := range []struct {
		name string
		args []string
		// says is what it says when both ends are there.
		says   string
		signal os.Signal
		code   int
	}{
		{"to its end", []string{"catch-up", "--ops=20000", "--rounds=1"}, "catch-up 1 of 1", nil, cli.ExitOK},
		{"interrupted", forever, "operations at", os.Interrupt, cli.ExitUnexpected},
		{"killed", forever, "operations at", os.Kill, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bench.json")
			if tt.code == cli.ExitOK {
				tt.args = append(tt.args, "--json="+file)
			}
			ends, said, code := runBench(t, tt.args, tt.says, tt.signal)
			if code != tt.code {
				t.Errorf("code %d, want %d:\n%s", code, tt.code, said)
			}
			if len(ends) != 2 {
				t.Fatalf("there were %d ends in processes of their own, want 2:\n%s", len(ends), said)
			}
			within := time.Now().Add(time.Minute)
			if tt.signal != os.Kill {
				within = time.Now() // it waits for them
			}
			for _, pid := range ends {
				for tick := time.NewTicker(20 * time.Millisecond); isRunning(pid); <-tick.C {
					if time.Now().After(within) {
						t.Fatalf("process %d is left", pid)
					}
				}
			}
			if tt.code != cli.ExitOK {
				return
			}
			report, err := result.Read(file)
			if err != nil {
				t.Fatal(err)
			}
			if r := report.Runs[0]; r.Source.String() != "embedded 5.0 (1 member)" || r.Target != r.Source || r.Ops != 20_000 {
				t.Errorf("%d operations from %q to %q", r.Ops, r.Source, r.Target)
			}
		})
	}
}

// runBench runs the command bench. Once it has said that both ends are there, it sends the signal,
// if any. It returns the processes of the ends, the output and the exit code.
func runBench(t *testing.T, args []string, says string, signal os.Signal) (ends []int, output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if ends != nil || !strings.Contains(lines.Text(), says) {
			continue
		}
		if ends = childrenOf(t, cmd.Process.Pid); signal != nil {
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
		}
	}
	began := time.Now()
	_ = cmd.Wait() // the code says it
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s to end", took)
	}
	return ends, said.String(), cmd.ProcessState.ExitCode()
}

// childrenOf finds the processes that a process started.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, file := range files {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		if _, parent := statOf(child); parent == pid {
			list = append(list, child)
		}
	}
	return list
}

// isRunning reports whether a process is there, and not only waited for.
func isRunning(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	state, _ := statOf(pid)
	return state != "" && state != "Z" && state != "X"
}

// statOf is a process's state, empty if there is none, and whose child it is.
func statOf(pid int) (state string, parent int) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1]) // 0 is none
	return fields[0], parent
}
