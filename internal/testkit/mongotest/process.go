package mongotest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/launch"
)

var versionLine = regexp.MustCompile(`(?m)^db version v(\S+)`)

// checkBinary fails t unless bin is a server, and returns its version.
func checkBinary(t testing.TB, bin string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), bin, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("run %s=%q with --version: %v\n%s", EnvMongod, bin, err, out)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		t.Fatalf("run %s=%q with --version: no line with \"db version v\" in:\n%s", EnvMongod, bin, out)
	}
	return string(m[1])
}

// process is one member's server process.
type process struct{ *launch.Process }

// startProcesses starts a set of processes on loopback.
func startProcesses(t testing.TB, bin string, opts Options) *ReplicaSet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processStart)
	defer cancel()
	var extra []string
	if len(opts.Users) > 0 {
		extra = []string{"--keyFile", writeKeyfile(t)}
	}
	rs := &ReplicaSet{opts: opts}
	ctx, cancelSet := context.WithCancelCause(ctx)
	defer cancelSet(nil)
	for range opts.Members {
		p := startMember(ctx, t, bin, &opts, extra)
		rs.members = append(rs.members, p)
		// Without this, a member that ends while the others wait for it would be
		// noticed by time alone.
		alive := p.Alive()
		defer context.AfterFunc(alive, func() { cancelSet(context.Cause(alive)) })()
	}
	if err := rs.form(ctx); err != nil {
		t.Fatalf("start a replica set of %s at %s: %v (context: %v)", bin, strings.Join(rs.Members(), ","), err, context.Cause(ctx))
	}
	return rs
}

// keyfileText is what the members know each other by.
const keyfileText = "bW9uZ290ZXN0bW9uZ290ZXN0bW9uZ290ZXN0"

// writeKeyfile writes a keyfile as a server wants it: for its owner alone.
func writeKeyfile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keyfile")
	if err := os.WriteFile(path, []byte(keyfileText), 0o400); err != nil {
		t.Fatalf("write a keyfile: %v", err)
	}
	return path
}

// startMember starts a process and returns once it answers. It is killed when t ends,
// and the end of its log is shown if t has failed.
func startMember(ctx context.Context, t testing.TB, bin string, opts *Options, extra []string) process {
	t.Helper()
	// The folder is asked for before the cleanup that kills: cleanups run
	// backwards, and the folder must outlive the process.
	p, err := launch.Begin(ctx, launch.Config{
		Binary: bin, Dir: t.TempDir(), Name: "mongod", SetName: opts.SetName, Logf: t.Logf,
		Args: append(append([]string{"--wiredTigerCacheSizeGB", "0.25"}, extra...), opts.args()...),
	}, func(ctx context.Context, address string) error { return waitAnswering(ctx, t, address) })
	if err != nil {
		t.Fatalf("start %s: %v", bin, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server at %s, end of its log:\n%s", p.Address, launch.Tail(p.Log))
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return process{p}
}

func (p process) host() string { return p.Address }

// start implements server.
func (p process) start(ctx context.Context) error { return p.Start(ctx) }

// signals are what the names stand for.
var signals = map[signal]os.Signal{kill: syscall.SIGKILL, freeze: syscall.SIGSTOP, thaw: syscall.SIGCONT}

// signal implements server.
func (p process) signal(_ context.Context, s signal) error {
	if err := p.Signal(signals[s]); err != nil || s != kill {
		return err
	}
	return p.Kill() // waits
}
