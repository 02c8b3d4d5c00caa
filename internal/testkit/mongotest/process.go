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
	"syscall"
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
	bin     string
	args    []string
	address string
	log     string // path

	mu   sync.Mutex // guards life
	life *life
}

// life is a process from its start to its end.
type life struct {
	cmd *exec.Cmd
	wg  sync.WaitGroup
	// alive ends with the process; its cause says how.
	alive context.Context
}

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
		alive := p.alive()
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

// startMember starts a process and returns once it answers.
func startMember(ctx context.Context, t testing.TB, bin string, opts *Options, extra []string) *process {
	t.Helper()
	for attempt := 1; ; attempt++ {
		p := newProcess(ctx, t, bin, opts, extra)
		if err := p.start(ctx); err != nil {
			t.Fatalf("start %s: %v", bin, err)
		}
		err := p.waitAnswering(ctx, t)
		if err == nil {
			return p
		}
		tail := logTail(p.log)
		if attempt == portAttempts || p.alive().Err() == nil || !strings.Contains(strings.ToLower(tail), portTaken) {
			t.Fatalf("start %s at %s: %v", bin, p.address, err)
		}
		t.Logf("port of %s was taken in the meantime, trying another", p.address)
	}
}

// newProcess prepares a process on a free port. What runs of it is killed when t
// ends, and the end of its log is shown if t has failed.
func newProcess(ctx context.Context, t testing.TB, bin string, opts *Options, extra []string) *process {
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
		bin:     bin,
		address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		log:     filepath.Join(dir, "mongod.log"),
	}
	p.args = append([]string{
		"--replSet", opts.SetName, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port), "--dbpath", data,
		"--nounixsocket", "--wiredTigerCacheSizeGB", "0.25",
	}, append(extra, opts.args()...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server at %s, end of its log:\n%s", p.address, logTail(p.log))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.life == nil {
			return
		}
		if err := p.life.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("kill the server at %s: %v", p.address, err)
		}
		p.life.wg.Wait()
	})
	return p
}

func (p *process) host() string { return p.address }

// alive is done when the process that was started last has ended; its cause says
// how.
func (p *process) alive() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.alive
}

// start implements server.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && p.life.alive.Err() == nil {
		return errors.New("it is running")
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	// The process has its own handle.
	defer func() { _ = log.Close() }()
	r := &life{}
	// Not bound to the test's context: the process is to outlive the test's
	// body, so that cleanups registered later still find it.
	r.cmd = exec.Command(p.bin, p.args...) //nolint:noctx // see above
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		return err
	}
	alive, died := context.WithCancelCause(context.WithoutCancel(ctx))
	r.alive = alive
	r.wg.Go(func() {
		if err := r.cmd.Wait(); err != nil {
			died(fmt.Errorf("the server at %s ended: %w", p.address, err))
			return
		}
		died(fmt.Errorf("the server at %s ended by itself", p.address))
	})
	p.life = r
	return nil
}

// signals are what the names stand for.
var signals = map[signal]os.Signal{kill: syscall.SIGKILL, freeze: syscall.SIGSTOP, thaw: syscall.SIGCONT}

// signal implements server.
func (p *process) signal(_ context.Context, s signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.alive.Err() != nil {
		return context.Cause(p.life.alive) //nolint:contextcheck // the life of the process
	}
	if err := p.life.cmd.Process.Signal(signals[s]); err != nil {
		return err
	}
	if s == kill {
		p.life.wg.Wait()
	}
	return nil
}

// waitAnswering returns once the process answers, or has ended.
//
//nolint:contextcheck // it also ends with the life of the process
func (p *process) waitAnswering(ctx context.Context, t testing.TB) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := p.alive()
	defer context.AfterFunc(alive, func() { cancel(context.Cause(alive)) })()
	return waitAnswering(ctx, t, p.address)
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
