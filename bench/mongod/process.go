package mongod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// tailBytes is how much of a server's log an error shows at most.
	tailBytes = 4 << 10
	// startTime is for how long a server may start.
	startTime = 90 * time.Second
	// stopTime is how long a server may take to end in order.
	stopTime = 60 * time.Second
	// portTaken is what a server says whose port somebody else has; another one is
	// tried so often.
	portTaken    = "already in use"
	portAttempts = 3
)

// errEnded is the cause of a server's end that ended well.
var errEnded = errors.New("it ended by itself")

// process is a server's process. It may be started again once it has ended.
type process struct {
	binary  string
	args    []string
	address string // host:port
	log     string // path

	// started is nil while it was never started.
	started *exec.Cmd
	// alive ends with the process that was started last; its cause says how.
	alive context.Context //nolint:containedctx // it is the life of the process
	wait  sync.WaitGroup
}

// newProcess prepares a server of a set with a folder of its own in dir.
func newProcess(ctx context.Context, cfg *Config, dir, name string) (*process, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	data := filepath.Join(dir, name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for a server's data: %w", err)
	}
	return &process{
		binary: cfg.Binary, args: arguments(cfg, port, data),
		address: net.JoinHostPort(loopback, strconv.Itoa(port)), log: filepath.Join(dir, name+".log"),
	}, nil
}

const loopback = "127.0.0.1"

// arguments are what a server is started with.
func arguments(cfg *Config, port int, data string) []string {
	args := []string{
		"--replSet", setName, "--bind_ip", loopback, "--port", strconv.Itoa(port), "--dbpath", data,
		"--oplogSize", strconv.Itoa(cfg.OplogMB), "--nounixsocket",
	}
	if cfg.CacheGB > 0 {
		args = append(args, "--wiredTigerCacheSizeGB", strconv.FormatFloat(cfg.CacheGB, 'f', 2, 64))
	}
	return args
}

// start starts it, with the data that it has. It does not wait for an answer.
func (p *process) start(ctx context.Context) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open a server's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the process has a handle of its own
	// It is to end in order, and with the set, not with ctx.
	cmd := exec.Command(p.binary, p.args...) //nolint:noctx // see above
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the server %s: %w", p.binary, err)
	}
	alive, died := context.WithCancelCause(context.WithoutCancel(ctx))
	p.started, p.alive = cmd, alive
	p.wait.Go(func() {
		err := cmd.Wait()
		if err == nil {
			err = errEnded
		}
		died(fmt.Errorf("the server at %s: %w; the end of its log:\n%s", p.address, err, logTail(p.log)))
	})
	return nil
}

// living returns a context that ends with ctx, or with one of the processes.
func living(ctx context.Context, processes ...*process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	releases := make([]func() bool, 0, len(processes))
	for _, p := range processes {
		releases = append(releases, context.AfterFunc(p.alive, func() { cancel(context.Cause(p.alive)) }))
	}
	return ctx, func() {
		for _, release := range releases {
			release()
		}
		cancel(nil)
	}
}

// stop makes it end in order, as an operator would.
func (p *process) stop(ctx context.Context) error {
	if err := p.started.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server at %s: %w", p.address, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopTime, errors.New("it took too long"))
	defer cancel()
	select {
	case <-p.alive.Done():
		p.wait.Wait()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the server at %s: %w", p.address, context.Cause(ctx))
	}
}

// kill ends it at once, if it runs, and waits until it has.
func (p *process) kill() error {
	if p.started == nil {
		return nil
	}
	err := p.started.Process.Kill()
	p.wait.Wait()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the server at %s: %w", p.address, err)
	}
	return nil
}

// freePort returns a port of loopback that nobody listens on.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
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
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(0, info.Size()-tailBytes)
	tail, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return err.Error()
	}
	text := string(tail)
	if from > 0 { // the first line is most likely cut
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return strings.TrimRight(text, "\n")
}
