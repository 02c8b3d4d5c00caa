package launch

import (
	"context"
	"errors"
	"fmt"
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
	loopback = "127.0.0.1"
	// stopTime is how long a server may take to shut down.
	stopTime = 60 * time.Second
	// Between finding a free port and the server's binding it, another process may bind
	// it. The server says portTaken then, and another port is tried.
	portAttempts = 3
	portTaken    = "already in use"
)

// errEnded is the cause if a server exits with 0.
var errEnded = errors.New("it ended by itself")

// Config describes a process.
type Config struct {
	// Binary is the path of mongod.
	Binary string
	// Dir is the folder of the data, in NAME-1, and of the log, NAME-1.log. The number
	// is that of the attempt.
	Dir, Name string
	// SetName is the name of the replica set.
	SetName string
	// Args are further arguments.
	Args []string
	// Logf says that another port is tried. Nil is fine.
	Logf func(format string, args ...any)
}

// Process is a mongod. Its methods are safe for concurrent use.
type Process struct {
	// Address is host:port, Log the path of the log.
	Address, Log string

	binary string
	args   []string

	mu   sync.Mutex // guards life
	life *life
}

// life is a process from its start to its end.
type life struct {
	cmd  *exec.Cmd
	wait sync.WaitGroup
	// alive ends with the process; its cause says how.
	alive context.Context //nolint:containedctx // the life of the process
}

// Begin starts a server and returns once answers does, which is called with a context
// that also ends with the process. If it returns an error, the process has ended.
func Begin(ctx context.Context, cfg Config, answers func(ctx context.Context, address string) error) (*Process, error) {
	for attempt := 1; ; attempt++ {
		p, err := prepare(ctx, &cfg, fmt.Sprintf("%s-%d", cfg.Name, attempt))
		if err != nil {
			return nil, err
		}
		lost, err := p.begin(ctx, answers)
		if err == nil {
			return p, nil
		}
		if !lost || attempt == portAttempts {
			return nil, err
		}
		if cfg.Logf != nil {
			cfg.Logf("the port of %s was taken in the meantime, trying another", p.Address)
		}
	}
}

// begin starts the process and waits for its answer. It reports whether it failed
// because the port was taken.
func (p *Process) begin(ctx context.Context, answers func(context.Context, string) error) (lost bool, err error) {
	if err := p.Start(ctx); err != nil {
		return false, err
	}
	answered := false
	defer func() {
		if !answered { // answers may have ended the goroutine
			err = errors.Join(err, p.Kill())
		}
	}()
	living, release := Living(ctx, p)
	defer release()
	if err := answers(living, p.Address); err != nil {
		return p.Alive().Err() != nil && strings.Contains(strings.ToLower(Tail(p.Log)), portTaken), err
	}
	answered = true
	return false, nil
}

// prepare makes the folder of a process and finds a port for it.
func prepare(ctx context.Context, cfg *Config, name string) (*Process, error) {
	port, err := FreePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	data := filepath.Join(cfg.Dir, name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for a server's data: %w", err)
	}
	return &Process{
		Address: net.JoinHostPort(loopback, strconv.Itoa(port)), Log: filepath.Join(cfg.Dir, name+".log"),
		binary: cfg.Binary, args: append([]string{
			"--replSet", cfg.SetName, "--bind_ip", loopback, "--port", strconv.Itoa(port), "--dbpath", data, "--nounixsocket",
		}, cfg.Args...),
	}, nil
}

// Start starts the process, which must not be running, with the data that it has. It
// does not wait for an answer. The process outlives ctx.
func (p *Process) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && p.life.alive.Err() == nil {
		return errors.New("it is running")
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open a server's log: %w", err)
	}
	defer log.Close()                                  //nolint:errcheck // the process has a handle of its own
	l := &life{cmd: exec.Command(p.binary, p.args...)} //nolint:noctx // it outlives ctx
	l.cmd.Stdout, l.cmd.Stderr = log, log
	if err := l.cmd.Start(); err != nil {
		return fmt.Errorf("start the server %s: %w", p.binary, err)
	}
	alive, died := context.WithCancelCause(context.WithoutCancel(ctx))
	l.alive = alive
	l.wait.Go(func() {
		err := l.cmd.Wait()
		if err == nil {
			err = errEnded
		}
		died(fmt.Errorf("the server at %s: %w; the end of its log:\n%s", p.Address, err, Tail(p.Log)))
	})
	p.life = l
	return nil
}

func (p *Process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// Alive returns a context that is done when the process that was started last has
// ended; its cause says how.
func (p *Process) Alive() context.Context { return p.current().alive }

// Living returns a context that ends with ctx, or with one of the processes.
func Living(ctx context.Context, processes ...*Process) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	releases := make([]func() bool, 0, len(processes))
	for _, p := range processes {
		alive := p.Alive()
		releases = append(releases, context.AfterFunc(alive, func() { cancel(context.Cause(alive)) }))
	}
	return ctx, func() {
		for _, release := range releases {
			release()
		}
		cancel(nil)
	}
}

// Signal sends the process a signal. It is an error that it has ended.
func (p *Process) Signal(s os.Signal) error {
	l := p.current()
	if l.alive.Err() != nil {
		return context.Cause(l.alive)
	}
	return l.cmd.Process.Signal(s)
}

// Stop makes the process shut down, as an operator would, and waits until it has.
func (p *Process) Stop(ctx context.Context) error {
	l := p.current()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the server at %s: %w", p.Address, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stopTime, errors.New("it took too long"))
	defer cancel()
	select {
	case <-l.alive.Done():
		l.wait.Wait()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the server at %s: %w", p.Address, context.Cause(ctx))
	}
}

// Kill ends the process at once, if it runs, and waits until it has ended.
func (p *Process) Kill() error {
	l := p.current()
	if l == nil {
		return nil
	}
	err := l.cmd.Process.Kill()
	l.wait.Wait()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill the server at %s: %w", p.Address, err)
	}
	return nil
}

// FreePort returns a free port of loopback.
func FreePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // a TCP listener has no other
	return port, l.Close()
}
