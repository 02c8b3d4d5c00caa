package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// execWith runs a shell's command with a lock in store, and returns its outcome.
func execWith(ctx context.Context, t *testing.T, store *lockstest.Memory, ttl time.Duration, script string) error {
	t.Helper()
	e := locks.NewElect(locks.ElectConfig{Store: store, TTL: ttl})
	defer e.Close()
	c := leaseExecCommand{Name: "k", TTL: ttl, Wait: -1, Command: []string{"sh", "-c", script}}
	return c.with(ctx, cli.Output{Results: os.Stderr, Complaints: os.Stderr}, e) // no pipes, as in a run
}

// written waits until a file has a line, and returns that.
func written(t *testing.T, name string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(name); err == nil && bytes.HasSuffix(text, []byte("\n")) {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("%s was not written", name)
	return ""
}

// TestLeaseExecLost: the lock is released by hand. What the command has started, and ignores
// SIGTERM, has ended before lease exec does. The lock must not expire on a slow machine before it is released.
func TestLeaseExecLost(t *testing.T) {
	t.Parallel()
	store, ready := lockstest.NewMemory(), filepath.Join(t.TempDir(), "ready")
	ended := make(chan error, 1)
	go func() {
		ended <- execWith(t.Context(), t, store, 15*time.Second, `sh -c 'trap : TERM; echo $$ > `+ready+`; while :; do sleep 0.05; done'; true`)
	}()
	pid := must.Get(strconv.Atoi(written(t, ready)))(t)
	must.Succeed(t, store.Release(t.Context(), "k", store.Record("k").ID))
	if err := <-ended; !errors.Is(err, locks.ErrLost) {
		t.Errorf("it ended with %v", err)
	}
	for deadline := time.Now().Add(time.Minute); !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what the command has started goes on")
		}
	}
}

// TestLeaseExecTold: lease exec is told to end. What the command has started ends in order, and
// the lock is kept until then.
func TestLeaseExecTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, ready, last := lockstest.NewMemory(), filepath.Join(dir, "ready"), filepath.Join(dir, "last")
	ctx, tell := context.WithCancelCause(t.Context())
	defer tell(nil)
	ended := make(chan error, 1)
	go func() {
		ended <- execWith(ctx, t, store, time.Minute, `sh -c 'trap "sleep 0.3; echo x > `+last+`; exit" TERM; echo $$ > `+ready+`; while :; do sleep 0.05; done'; true`)
	}()
	written(t, ready)
	tell(errors.New("told to end"))
	err := <-ended
	if text, read := os.ReadFile(last); read != nil || len(text) == 0 {
		t.Errorf("what the command has started did not end in order: %v", read)
	}
	if coded, ok := errors.AsType[*cli.Error](err); !ok || coded.Code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with %v", err)
	}
	if store.Record("k").IsLocked() {
		t.Error("the lock is not released")
	}
}

// TestLeaseExecDenied: that the target refuses access has the exit code of that.
func TestLeaseExecDenied(t *testing.T) {
	t.Parallel()
	e := locks.NewElect(locks.ElectConfig{Store: lockstest.NewMemory(), TTL: time.Second})
	defer e.Close()
	c := leaseExecCommand{Name: "k", TTL: time.Second}
	for code, why := range map[int]error{
		cli.ExitConnect: fmt.Errorf("lock: %w", servererr.New(servererr.Unauthorized, "planted")), cli.ExitUnexpected: errors.New("planted"),
	} {
		if coded, ok := errors.AsType[*cli.Error](c.notRun(t.Context(), e, why)); !ok || coded.Code != code {
			t.Errorf("%v: code %d, want %d", why, coded.Code, code)
		}
	}
}
