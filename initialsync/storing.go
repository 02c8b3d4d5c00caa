package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/oplog"
)

// storing is a running fetcher, whose replies are written to disk.
type storing struct {
	fetcher *fetcher.Fetcher
	stop    context.CancelCauseFunc
	// consistent means that the link is: there is no copy that could be made again.
	consistent atomic.Bool
	// known is closed once the source has shown that the entries found on disk are in its
	// history: with its first reply, which begins with the last entry of that.
	known chan struct{}
	// done is closed once err is set: why it ended, nil if it was canceled.
	done chan struct{}
	err  error
	// local means that the disk failed, and that the stored entries can be read nevertheless; at
	// is when.
	local bool
	at    time.Time
}

// startStoring starts to fetch into the open spool, from its last entry on.
func (l *Log) startStoring(ctx, soft context.Context, fetch fetcher.Config) error {
	_, last, found := l.spool.Bounds()
	if found {
		fetch.From = last
	}
	consistent := isConsistent(l.copy)
	if !consistent {
		fetch.Copy = &fetcher.Copy{Wait: l.cfg.SourceWait, Check: l.entries.check}
	}
	f, err := fetcher.New(fetch)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	st, to := &storing{fetcher: f, stop: stop, known: make(chan struct{}), done: make(chan struct{})}, l.spool
	st.consistent.Store(consistent)
	if !consistent || !found {
		close(st.known)
	}
	l.storing = st
	l.running.Go(func() {
		defer close(st.done)
		defer stop(nil)
		defer context.AfterFunc(soft, func() { stop(errStop) })()
		st.err = l.store(ctx, st, to)
	})
	return nil
}

func (l *Log) store(ctx context.Context, st *storing, to *spool.Spool) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := make(chan oplog.Reply)
	g.Go(func() error { return l.cfg.Run(ctx, st.fetcher, fetched) })
	var failed error // of keep, if it was the first to fail
	g.Go(func() error {
		err := st.keep(ctx, fetched, to)
		if ctx.Err() == nil {
			failed = err
		}
		return err
	})
	err := g.Wait()
	if err == nil || errors.Is(context.Cause(ctx), errStop) {
		return nil
	}
	if st.consistent.Load() {
		// If it is the disk, the link continues without a spool once the stored entries are applied.
		st.local, st.at = errors.Is(err, failed) && isOfDisk(err), time.Now()
		l.cfg.Observer.Log(slog.LevelWarn, "the oplog is not spooled any further", slog.String(keyError, err.Error()))
	}
	return fmt.Errorf("spool the oplog: %w", err)
}

// keep stores fetched entries. Those found on disk are known to be of the source's history
// once there is a reply.
func (s *storing) keep(ctx context.Context, fetched <-chan oplog.Reply, to *spool.Spool) error {
	if !s.isKnown() {
		first := make(chan oplog.Reply, 1)
		select {
		case r, ok := <-fetched:
			if !ok {
				return nil
			}
			first <- r
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		close(first)
		close(s.known)
		if err := to.Store(ctx, first); err != nil {
			return err
		}
	}
	return to.Store(ctx, fetched)
}

// isKnown reports whether the entries found on disk are of the source's history.
func (s *storing) isKnown() bool {
	select {
	case <-s.known:
		return true
	default:
		return false
	}
}

// awaitKnown blocks until that is known, and returns false if fetching has ended before, or ctx
// is done.
func (s *storing) awaitKnown(ctx context.Context) bool {
	select {
	case <-s.known:
	case <-s.done:
	case <-ctx.Done():
	}
	return s.isKnown()
}

// copied records that the link is consistent.
func (s *storing) copied() {
	s.consistent.Store(true)
	s.fetcher.Copied()
}

func (s *storing) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// failed reports whether fetching has ended because the disk failed.
func (l *Log) failed() bool { return l.storing != nil && l.storing.ended() && l.storing.local }

// fault returns why fetching has ended, nil if it was told to, or has not.
func (l *Log) fault() error {
	if l.storing == nil || !l.storing.ended() {
		return nil
	}
	return l.storing.err
}

// mayStore reports whether the disk has failed, some time ago, and can be written to again.
func (l *Log) mayStore() bool {
	if !l.failed() || time.Since(l.storing.at) < storeAgain {
		return false
	}
	l.storing.at = time.Now()
	return spool.Probe(l.dir) == nil
}

// Wait blocks until fetching fails, and returns why, or until ctx is done. It returns nil
// if only the disk failed, and the link need not be copied again for that.
func (l *Log) wait(ctx context.Context) error {
	select {
	case <-l.storing.done:
		if err := l.storing.err; err != nil && !l.storing.local {
			return err
		}
	case <-ctx.Done():
	}
	return nil
}

// stopStoring stops the fetcher and waits until it has ended.
func (l *Log) stopStoring() {
	if l.storing != nil {
		l.storing.stop(errStop)
		l.running.Wait()
		l.storing = nil
	}
}
