package mongotest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	tailBytes = 16 << 10
	// Between finding a port free and the server's taking it, another process
	// may take it.
	portAttempts = 3
	portTaken    = "already in use"
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
type process struct {
	host string
	log  string // path
	cmd  *exec.Cmd
	wg   sync.WaitGroup
	// alive ends with the process; its cause says how.
	alive context.Context
}

// startProcesses starts a set of processes on loopback.
func startProcesses(t testing.TB, bin string, opts Options) *ReplicaSet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), processStart)
	defer cancel()

	ctx, cancelSet := context.WithCancelCause(ctx)
	defer cancelSet(nil)

	hosts := make([]string, opts.Members)
	for i := range hosts {
		p := startMember(ctx, t, bin, opts)
		hosts[i] = p.host
		// Without this, a member that ends while the others wait for it would
		// be noticed by time alone.
		defer context.AfterFunc(p.alive, func() { cancelSet(context.Cause(p.alive)) })()
	}
	first, err := connect(direct(hosts[0]))
	if err != nil {
		t.Fatalf("connect to %s: %v", hosts[0], err)
	}
	defer disconnect(ctx, t, first)
	if err := initiate(ctx, first, hosts); err != nil {
		t.Fatalf("%v (context: %v)", err, context.Cause(ctx))
	}
	rs := &ReplicaSet{uri: "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + setName}
	if rs.version, err = waitReady(ctx, rs.uri, len(hosts)); err != nil {
		t.Fatalf("start a replica set of %s at %s: %v", bin, strings.Join(hosts, ","), err)
	}
	return rs
}

// startMember starts a process and returns once it answers.
func startMember(ctx context.Context, t testing.TB, bin string, opts Options) *process {
	t.Helper()
	for attempt := 1; ; attempt++ {
		p := launch(ctx, t, bin, opts)
		err := p.waitAnswering(ctx, t)
		if err == nil {
			return p
		}
		tail := logTail(p.log)
		if attempt == portAttempts || p.alive.Err() == nil || !strings.Contains(strings.ToLower(tail), portTaken) {
			t.Fatalf("start %s at %s: %v", bin, p.host, err)
		}
		t.Logf("port of %s was taken in the meantime, trying another", p.host)
	}
}

// launch starts a process on a free port. It is killed when t ends, and the end
// of its log is shown if t has failed.
func launch(ctx context.Context, t testing.TB, bin string, opts Options) *process {
	t.Helper()
	// The folder is asked for before the cleanup that kills: cleanups run
	// backwards, and the folder must outlive the process.
	dir := t.TempDir()
	port, err := freePort(ctx)
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	data := filepath.Join(dir, "db")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatalf("make a folder for the server's data: %v", err)
	}
	p := &process{
		host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		log:  filepath.Join(dir, "mongod.log"),
	}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatalf("create the server's log: %v", err)
	}
	// The process has its own handle.
	defer func() { _ = log.Close() }()

	args := []string{
		"--replSet", setName, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port), "--dbpath", data,
		"--nounixsocket", "--wiredTigerCacheSizeGB", "0.25",
	}
	// Not bound to the test's context: the process is to outlive the test's
	// body, so that cleanups registered later still find it.
	p.cmd = exec.Command(bin, append(args, opts.args()...)...) //nolint:noctx // see above
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", bin, err)
	}
	alive, died := context.WithCancelCause(context.WithoutCancel(ctx))
	p.alive = alive
	p.wg.Go(func() {
		if err := p.cmd.Wait(); err != nil {
			died(fmt.Errorf("the server at %s ended: %w", p.host, err))
			return
		}
		died(fmt.Errorf("the server at %s ended by itself", p.host))
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server at %s, end of its log:\n%s", p.host, logTail(p.log))
		}
		if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("kill the server at %s: %v", p.host, err)
		}
		p.wg.Wait()
	})
	return p
}

// waitAnswering returns once the process answers, or has ended.
func (p *process) waitAnswering(ctx context.Context, t testing.TB) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	//nolint:contextcheck // alive is the life of the process, not of this call
	defer context.AfterFunc(p.alive, func() { cancel(context.Cause(p.alive)) })()
	client, err := connect(direct(p.host))
	if err != nil {
		return err
	}
	defer disconnect(ctx, t, client)
	return waitAnswering(ctx, client)
}

// freePort returns a port of loopback that nobody listens on.
func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener has no other
	return port, l.Close()
}

// logTail returns the last lines of a log, or why there are none.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	tail := make([]byte, min(info.Size(), tailBytes))
	// The server may still write; a log never shrinks.
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return err.Error()
	}
	return wholeLines(tail, tailBytes)
}

// wholeLines returns b as text. If b is as long as a tail can be, its first
// line is most likely cut and left out.
func wholeLines(b []byte, limit int) string {
	text := string(b)
	if len(b) >= limit {
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			return rest
		}
	}
	return text
}
