package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestServeRefuses: what cannot be served as it was asked for ends before anything
// is, with a code and a hint, and prints no connection string.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	must.Succeed(t, os.WriteFile(empty, []byte("\n"), 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"--dialect=3.6", cli.ExitUsage, "--dialect=3.6: there are 4.4, 5.0, 6.0, 7.0, 8.0"},
		{"--members=0", cli.ExitUsage, "--members=0: want 1 to 50"},
		{"--members=51", cli.ExitUsage, "--members=51: want 1 to 50"},
		{"--port=-1", cli.ExitUsage, "--port=-1"},
		{"--port=65534", cli.ExitUsage, "up to 65536, are not from 1 to 65535"},
		{"--port=x", cli.ExitUsage, "--port"},
		{"--bind=nowhere", cli.ExitUsage, "--bind=nowhere: not an IP address"},
		{"--bind=0.0.0.0", cli.ExitUsage, "say with --host"},
		{"--replset=a/b", cli.ExitUsage, `set name "a/b"`},
		{"--oplog-size=0", cli.ExitUsage, "--oplog-size=0"},
		{"--username=ann", cli.ExitUsage, "give both"},
		{"--password-file=" + empty, cli.ExitUsage, "give both"},
		{"--username=ann --password-file=" + empty, cli.ExitUsage, "is empty"},
		{"--username=ann --password-file=" + dir + "/none", cli.ExitUsage, "no such file"},
		{"--members=1 --port=" + port, cli.ExitCheck, "127.0.0.1:" + port + ": address already in use\nChoose another --port"},
		{"--members=1 --port=0 --bind=203.0.113.7", cli.ExitCheck, "--bind names an address of this machine"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := invoke(t, append([]string{"serve"}, strings.Fields(tt.args)...)...)
			if code != tt.code || !strings.Contains(stderr, tt.says) || stdout != "" {
				t.Errorf("code %d, want %d and %q, got\n%s%s", code, tt.code, tt.says, stdout, stderr)
			}
			if lines := strings.Split(strings.TrimSpace(stderr), "\n"); len(lines) < 2 || strings.Contains(stderr, "report it") {
				t.Errorf("no hint: %s", stderr)
			}
		})
	}
}

// TestServeStopped: a command stopped before the set serves has not done its
// work.
func TestServeStopped(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	var stdout, stderr strings.Builder
	if code := run(ctx, []string{"serve", "--port=0"}, &stdout, &stderr); code != cli.ExitUnexpected || stdout.String() != "" {
		t.Errorf("code %d\n%s%s", code, &stdout, &stderr)
	}
}

// TestServeUnusual: more members than may vote, and a host of another name.
func TestServeUnusual(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	first := &firstLine{then: func() { cancel(nil) }}
	stderr := &atOnce{}
	args := []string{"serve", "--port=0", "--members=9", "--bind=0.0.0.0", "--host=localhost", "--replset=many", "--verbose"}
	if code := run(ctx, args, first, stderr); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, stderr.text)
	}
	if !strings.HasPrefix(first.text, "mongodb://localhost:") || strings.Count(first.text, "localhost:") != 9 || !strings.HasSuffix(first.text, "/?replicaSet=many\n") {
		t.Errorf("the connection string is %q", first.text)
	}
	if !strings.Contains(stderr.text, "level=INFO") {
		t.Errorf("--verbose says only\n%s", stderr.text)
	}
}

// atOnce keeps what several goroutines write.
type atOnce struct {
	mu   sync.Mutex // guards text
	text string
}

func (w *atOnce) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(p)
	return len(p), nil
}

// firstLine keeps the output, and calls then.
type firstLine struct {
	text string
	then func()
}

func (l *firstLine) Write(p []byte) (int, error) {
	l.text += string(p)
	l.then()
	return len(p), nil
}

// TestServeSeed: two sets that are served with nothing but ports are not taken for one.
func TestServeSeed(t *testing.T) {
	t.Parallel()
	seed := func(port int, flag int64) int64 { return (&serveCommand{Port: port, Seed: flag}).seed() }
	if first, again := seed(27017, 0), seed(27017, 0); first == seed(27020, 0) || first != again {
		t.Error("it is not that of the port")
	}
	if one, other := seed(0, 0), seed(0, 0); one == other {
		t.Error("with ports of the system two sets are one")
	}
	if seed(27017, 5) != 5 || seed(0, 5) != 5 {
		t.Error("it is not the given one")
	}
}
