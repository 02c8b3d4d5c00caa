package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
)

type leaseExecCommand struct {
	targetFlags
	Name    string        `arg:"" help:"The name of the lock."`
	Command []string      `arg:"" help:"The command with its arguments, after two dashes."`
	Why     string        `settings:"no" help:"What for: others are shown it. Default: the command."`
	Wait    time.Duration `settings:"no" default:"-1s" help:"How long to wait for the lock. 0: try once; negative: for ever."`
	TTL     time.Duration `name:"ttl" settings:"no" default:"10s" help:"How long the lock lasts if this machine fails."`
}

// The environment of the command.
const (
	envLock  = "REPLICATOR_LEASE_NAME"
	envToken = "REPLICATOR_LEASE_TOKEN"
)

// notRun is the exit code for a command that was not run, or lost its lock.
const notRun = cli.ExitUnexpected

// Run runs a command with a lock.
func (c *leaseExecCommand) Run(ctx context.Context, out cli.Output) error {
	var faults []error
	if c.Name == "" {
		faults = append(faults, errors.New("the name of the lock is empty"))
	}
	if strings.HasPrefix(c.Name, linkPrefix) {
		faults = append(faults, fmt.Errorf("%q: such names are those of links' leases", c.Name))
	}
	if c.TTL < time.Second {
		faults = append(faults, fmt.Errorf("--ttl: %s is less than a second", c.TTL))
	}
	set, err := c.open(ctx, faults...)
	if err != nil {
		return err
	}
	defer set.Close()
	if c.Why == "" {
		c.Why = strings.Join(c.Command, " ")
	}
	e := locks.NewElect(locks.ElectConfig{Store: mongostore.New(set, c.MetadataDB), Who: "lease exec", TTL: c.TTL, Failed: once(out)})
	defer e.Close()
	return c.with(ctx, out, e)
}

// once returns a function that complains about an error unless it was the last one.
func once(out cli.Output) func(error) {
	var mu sync.Mutex
	last := ""
	return func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if text := err.Error(); text != last {
			last = text
			out.Complain("Retrying: %s", printable.Text(text))
		}
	}
}

// with runs the command with a lock of e.
func (c *leaseExecCommand) with(ctx context.Context, out cli.Output, e *locks.Elect) error {
	ran, result := false, error(nil)
	run := func(ctx context.Context) {
		ran = true
		result = c.run(ctx, out)
	}
	err := c.locked(ctx, e, run)
	switch {
	case !ran:
		return c.notRun(ctx, e, err)
	case errors.Is(err, locks.ErrLost):
		return &cli.Error{Err: fmt.Errorf("the command was ended: %w", err), Code: notRun, Hint: "The lock was released by hand, or overtaken: replicator lease show " + c.Name + " says who has it now."}
	case errors.Is(err, locks.ErrExpired):
		return &cli.Error{Err: fmt.Errorf("the command was ended: %w", err), Code: notRun, Hint: "Another process may have the lock now. Start it again once the target can be reached."}
	}
	return result
}

// notRun explains why the command was not run: the holder of the lock, if the target returns it.
func (c *leaseExecCommand) notRun(ctx context.Context, e *locks.Elect, err error) error {
	code, hint := notRun, "Check that the target can be reached and is written to. Nothing was run."
	if explainedCode(err) == cli.ExitConnect {
		code, hint = cli.ExitConnect, "Check the addresses, user name, password and privileges (docs/privileges.md). Nothing was run."
	}
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.TTL)
	defer cancel()
	list, failed := e.Locked(looking)
	for _, r := range list {
		if failed == nil && r.Name == c.Name {
			err = fmt.Errorf("%w: %s", err, printable.Text(r.String()))
			code, hint = notRun, "Without --wait it waits until the lock is released."
		}
	}
	return &cli.Error{Err: fmt.Errorf("the command was not run: %w", err), Code: code, Hint: hint}
}

func explainedCode(err error) int {
	code, _ := explain(err)
	return code
}

// locked runs a function with the lock, or returns why it could not get that.
func (c *leaseExecCommand) locked(ctx context.Context, e *locks.Elect, run func(context.Context)) error {
	if c.Wait == 0 {
		return c.tried(ctx, e, run)
	}
	if c.Wait < 0 {
		return e.Lock(ctx, c.Name, c.Why, run)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timedOut, late := fmt.Errorf("timed out after %s", c.Wait), false
	limit := time.AfterFunc(c.Wait, func() { cancel(timedOut) })
	defer limit.Stop()
	err := e.Lock(waiting, c.Name, c.Why, func(held context.Context) {
		if late = !limit.Stop(); !late {
			run(held)
		}
	})
	if late && err == nil {
		err = timedOut
	}
	return err
}

// tried tries once.
func (c *leaseExecCommand) tried(ctx context.Context, e *locks.Elect, run func(context.Context)) error {
	done := make(chan error, 1)
	got, err := e.TryLock(ctx, c.Name, c.Why, func(held context.Context) {
		run(held)
		done <- locks.Check(held)
	})
	if err == nil && !got {
		err = locks.ErrBusy
	}
	if err != nil {
		return err
	}
	return <-done
}

// run runs the command. When ctx is done the command gets SIGTERM. Once the lock is lost, it
// gets SIGKILL, before another process can have the lock.
func (c *leaseExecCommand) run(ctx context.Context, out cli.Output) error {
	cmd := exec.Command(c.Command[0], c.Command[1:]...) //nolint:gosec // The user has asked for that command.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, out.Results, out.Complaints
	cmd.Env = append(os.Environ(), envLock+"="+c.Name, envToken+"="+strconv.FormatInt(locks.Token(ctx), 10))
	cmd.WaitDelay = time.Second // for processes that it has started and left
	// A process that reads from a terminal must be in the terminal's group.
	group := !term.IsTerminal(int(os.Stdin.Fd()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
	if err := cmd.Start(); err != nil {
		return &cli.Error{Err: err, Code: notRun, Hint: "The command was not run. The lock is released."}
	}
	done := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() { c.watch(ctx, execGroup{cmd.Process, group}, done) })
	err := cmd.Wait()
	close(done)
	watcher.Wait()
	failed, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		return nil
	case !ok:
		return err
	}
	code := failed.ExitCode()
	if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return &cli.Error{Err: fmt.Errorf("%s: %w", c.Command[0], err), Code: code, Hint: "The code is that of the command. The lock is released."}
}

// watch ends the command when necessary, and the processes that it has started. Done is closed once the
// command itself has ended.
func (c *leaseExecCommand) watch(ctx context.Context, cmd execGroup, done <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-done:
		return
	}
	_ = cmd.signal(syscall.SIGTERM) // It may have ended.
	lost := locks.Lost(ctx)
	var kill, grace <-chan time.Time
	poll := time.NewTicker(groupPoll) // there is no signal when processes of others end
	defer poll.Stop()
	for {
		select {
		case <-lost:
			lost, kill = nil, time.After(c.TTL/10) // half of the margin
			continue
		case <-done:
			done, grace = nil, time.After(groupGrace)
			continue
		case <-poll.C:
			if done != nil || cmd.isLeft() {
				continue
			}
			return
		case <-kill:
		case <-grace:
		}
		_ = cmd.signal(syscall.SIGKILL)
		return
	}
}

const (
	// groupGrace is how long the processes started by a command may outlive it, when it had
	// to end. The lock is kept meanwhile.
	groupGrace = 5 * time.Second
	groupPoll  = 20 * time.Millisecond
)

// execGroup is a process and, if it has a group of its own, the processes that it has started.
type execGroup struct {
	process *os.Process
	group   bool
}

func (c execGroup) signal(s syscall.Signal) error {
	if c.group {
		return syscall.Kill(-c.process.Pid, s)
	}
	return c.process.Signal(s)
}

// isLeft reports whether a process of the group is left. One that has ended counts until its
// parent has taken note.
func (c execGroup) isLeft() bool {
	return c.group && !errors.Is(syscall.Kill(-c.process.Pid, 0), syscall.ESRCH)
}
