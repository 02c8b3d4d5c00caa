package cutover

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
)

const (
	// lockWait is how long the lock is waited for: that of a process that has died ends within that time.
	lockWait = 20 * time.Second
	// lookWait is how long the target is asked who has the lock. Without an answer that is not known.
	lookWait = 5 * time.Second
	// retakeWait is how long a process that has lost the lock, as the target did not answer, waits until that answers again.
	retakeWait = 10 * time.Minute
)

// BusyError reports that another process works on a cutover of the link, or on something else with it.
type BusyError struct{ Record locks.Record }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another process works on the link: %s", e.Record)
}

// LockConfig says which lock is taken, by whom and what for.
type LockConfig struct {
	// Target runs commands on the target's primary; its database MetaDB has the lock.
	Target mongo.Caller
	MetaDB string
	// Link is the link that is locked, By the operator, Why the work on it.
	Link, By, Why string
	// Said is called with the reason for each wait.
	Said func(what string)
}

// Locked runs do with the lock of a link as a whole ([jobs.Link]). The lock protects no data: it is for
// people, so that two of them do not work on one cutover. It ends ten seconds after its process has
// died. While another one has it, it is waited for, and the error is a *BusyError if that lasts. If the lock ends
// because the target does not answer, as in a failover, the context of do ends, and do is called again with the lock, once
// the target answers.
func Locked(ctx context.Context, cfg LockConfig, do func(ctx context.Context) error) error {
	var failed atomic.Pointer[error]
	e := locks.NewElect(locks.ElectConfig{
		Store: mongostore.New(cfg.Target, cfg.MetaDB), Who: cfg.By, Failed: func(err error) { failed.Store(&err) },
	})
	defer e.Close()
	var lost time.Time // when the lock had ended
	for {
		ended, err := lockedOnce(ctx, e, &cfg, do)
		switch last := failed.Load(); {
		case err != nil && ended:
			cfg.Said("the lock has ended, as the target did not answer: it is taken again (" + err.Error() + ")")
			lost = time.Now()
		case !errors.Is(err, errLockWait) || last == nil:
			return err
		case lost.IsZero() || time.Since(lost) > retakeWait:
			return *last
		default: // writes to the source may be stopped
			cfg.Said("waiting until the target answers: " + (*last).Error())
		}
	}
}

// lockedOnce runs do with the lock once. It reports whether the lock has ended meanwhile because it was not renewed.
func lockedOnce(ctx context.Context, e *locks.Elect, cfg *LockConfig, do func(ctx context.Context) error) (ended bool, err error) {
	waiting, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	limit := time.AfterFunc(lockWait, func() { enough(errLockWait) })
	defer limit.Stop()
	if r, busy := holder(ctx, e, cfg.Link); busy {
		cfg.Said("waiting for the lock: " + r.String())
	}
	var result error
	ran := false
	err = e.Lock(waiting, jobs.Link(cfg.Link), cfg.Why, func(held context.Context) {
		if !limit.Stop() { // held has ended with waiting
			return
		}
		ran, result = true, do(held)
		ended = errors.Is(context.Cause(held), locks.ErrExpired)
	})
	if ran {
		return ended, result
	}
	if err == nil {
		err = errLockWait
	}
	if r, busy := holder(ctx, e, cfg.Link); errors.Is(context.Cause(waiting), errLockWait) && busy {
		return false, &BusyError{r}
	}
	return false, err
}

var errLockWait = errors.New("another process keeps the lock")

// WorksOn returns the holder of the lock of a link, false if there is none.
func WorksOn(ctx context.Context, target mongo.Caller, metaDB, link string) (locks.Record, bool, error) {
	list, err := mongostore.New(target, metaDB).List(ctx, "")
	if err != nil {
		return locks.Record{}, false, fmt.Errorf("read who works on link %s: %w", link, err)
	}
	for _, r := range list {
		if r.Name == jobs.Link(link) && r.IsLocked() {
			return r, true, nil
		}
	}
	return locks.Record{}, false, nil
}

// holder returns the holder of the lock of a link, false also if the target does not say.
func holder(ctx context.Context, e *locks.Elect, link string) (locks.Record, bool) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	list, err := e.Locked(ctx)
	if err != nil {
		return locks.Record{}, false
	}
	for _, r := range list {
		if r.Name == jobs.Link(link) && r.IsLocked() {
			return r, true
		}
	}
	return locks.Record{}, false
}

// again continues a cutover that Run has begun with this Config.
func (cfg *Config) again(ctx context.Context, r *record.Record) (*record.Record, error) {
	switch r.State {
	case record.Done: // the answer to the last change was lost
		return r, nil
	case record.Cancelled:
		return r, record.ErrChanged
	case record.Running, record.Cancelling:
	}
	return Resume(ctx, cfg)
}

// same returns an error if a record is not that of the cutover that this process has worked on before.
func (cfg *Config) same(r *record.Record) error {
	switch {
	case cfg.id == "" && r.Open():
		cfg.id = r.ID
	case cfg.id != "" && (r == nil || r.ID != cfg.id):
		return record.ErrChanged
	}
	return nil
}
