package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// Log is the source's oplog since the copy began. It is fetched from the member that is
// copied and spooled to disk, from before the first document is read until everything
// in the spool has been applied. It belongs to no attempt: while a target is
// unreachable for hours, the source's oplog must not roll over. Its methods are for one
// goroutine at a time.
type Log struct {
	cfg LogConfig

	spool *spool.Spool // nil if none is open
	id    string       // of the copy that the spool is for
	// storing fills the spool, nil if nothing has since it was opened; started are its
	// parameters. Its From follows the checkpoint.
	storing *storing
	started LogStart
	running sync.WaitGroup
}

// LogConfig says how much of the oplog is kept.
type LogConfig struct {
	// Link is the link's name.
	Link string
	// Limit, MinFree and Memory are those of [spool.Config].
	Limit, MinFree, Memory int64

	Observer event.Observer
	Registry prometheus.Registerer
}

// NewLog returns a closed log.
func NewLog(cfg LogConfig) *Log { return &Log{cfg: cfg} }

// Fetcher fetches the oplog.
type Fetcher interface {
	// Run sends replies on out until ctx is done, or until no member can be read for a
	// permanent reason. It closes out.
	Run(ctx context.Context, out chan<- oplog.Reply) error
	// Unpin lets it read any member: the target is consistent.
	Unpin()
}

// LogStart says what to fetch.
type LogStart struct {
	// Dir is the folder of the spool, empty if none is configured.
	Dir  string
	Copy *checkpoint.Copy
	// From is the entry to read from if the spool does not have it.
	From oplog.OpTime
	// Fetch creates a fetcher that starts with an entry.
	Fetch func(from oplog.OpTime) (Fetcher, error)
}

// storing is a running fetcher, whose replies are written to disk.
type storing struct {
	fetcher Fetcher
	stop    context.CancelCauseFunc
	// done is closed once err is set: why it ended, nil if it was canceled.
	done chan struct{}
	err  error
}

// errStop is the cause with which storing is canceled.
var errStop = errors.New("the oplog is not read any further")

// ErrNoSpool reports a copy that has no folder for the oplog.
var ErrNoSpool = errors.New("a copy needs a folder for the oplog, and none is given (--spool-dir)")

// Start opens the spool and fetches the oplog into it until ctx or soft is done, or the
// log is closed. A fetcher that is already running continues.
func (l *Log) Start(ctx, soft context.Context, s LogStart) error {
	if err := l.Open(s.Dir, s.Copy); err != nil {
		return err
	}
	from := s.From
	err := l.spool.Start(from)
	if errors.Is(err, spool.ErrMissing) {
		// The spool was written on another machine, or starts too late: read everything
		// again.
		if err := l.Remove(); err != nil {
			return err
		}
		if err := l.Open(s.Dir, s.Copy); err != nil {
			return err
		}
		err = l.spool.Start(from)
	}
	if err != nil {
		return fmt.Errorf("begin to read the spool at %s: %w", from, err)
	}
	if l.Running() && !l.storing.ended() {
		if s.Copy.Phase == checkpoint.Copied {
			// The attempt that recorded this may not have received the reply.
			l.Unpin()
		}
		return nil
	}
	if _, last, ok := l.spool.Bounds(); ok {
		from = last
	}
	f, err := s.Fetch(from)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	st, to := &storing{fetcher: f, stop: stop, done: make(chan struct{})}, l.spool
	l.storing, l.started = st, s
	l.running.Go(func() {
		defer close(st.done)
		defer stop(nil)
		defer context.AfterFunc(soft, func() { stop(errStop) })()
		st.err = st.run(ctx, to)
	})
	return nil
}

func (s *storing) run(ctx context.Context, to *spool.Spool) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := make(chan oplog.Reply)
	g.Go(func() error { return s.fetcher.Run(ctx, fetched) })
	g.Go(func() error { return to.Store(ctx, fetched) })
	err := g.Wait()
	if err == nil || errors.Is(context.Cause(ctx), errStop) {
		return nil
	}
	return fmt.Errorf("spool the oplog: %w", err)
}

func (s *storing) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Running reports whether a fetcher was started. It may have failed since.
func (l *Log) Running() bool { return l.storing != nil }

// Unpin lets the fetcher read any member: the target is consistent.
func (l *Log) Unpin() { l.storing.fetcher.Unpin() }

// Wait blocks until fetching fails, and returns why, or until ctx is done.
func (l *Log) Wait(ctx context.Context) error {
	select {
	case <-l.storing.done:
		if err := l.storing.err; err != nil {
			return err
		}
	case <-ctx.Done():
	}
	return nil
}

// Recover discards a spool that was found damaged, by the fetcher or by an attempt that
// ended with err: its content is fetched again. If the fetcher found it, fetching
// restarts at once, as the next attempt may take long to get that far. If the fetcher
// has failed otherwise, Recover returns that error.
func (l *Log) Recover(ctx, soft context.Context, err error) error {
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok && l.spool != nil {
		return l.discard(damaged)
	}
	if l.storing == nil || !l.storing.ended() {
		return nil
	}
	failed := l.storing.err
	if damaged, ok := errors.AsType[*spool.DamagedError](failed); ok {
		if err := l.discard(damaged); err != nil {
			return err
		}
		return l.Start(ctx, soft, l.started)
	}
	return failed
}

func (l *Log) discard(why *spool.DamagedError) error {
	l.logDamaged(why)
	return l.Remove()
}

func (l *Log) logDamaged(why error) {
	l.cfg.Observer.Log(slog.LevelWarn, "the spool is damaged: the log is read again from the source", slog.String(keyError, why.Error()))
}

// Spool returns the spool, nil if none is open.
func (l *Log) Spool() *spool.Spool { return l.spool }

// Open opens the spool of a copy in a folder. It stays open for all attempts.
func (l *Log) Open(dir string, c *checkpoint.Copy) error {
	id := fmt.Sprintf("%s/%d/%s/%d", l.cfg.Link, c.Number, c.Begin, c.Started.UnixMilli())
	if l.spool != nil && l.id == id {
		return nil
	}
	if err := l.Close(); err != nil {
		return err
	}
	if dir == "" {
		return ErrNoSpool
	}
	s, err := l.open(dir, id)
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok {
		// Its content is at the source too, or the copy is void.
		l.logDamaged(damaged)
		if err := spool.Clear(dir); err != nil {
			return fmt.Errorf("remove the damaged spool in %s: %w", dir, err)
		}
		s, err = l.open(dir, id)
	}
	if err != nil {
		return fmt.Errorf("open the spool in %s: %w", dir, err)
	}
	l.spool, l.id = s, id
	return nil
}

func (l *Log) open(dir, id string) (*spool.Spool, error) {
	return spool.Open(spool.Config{
		Dir: dir, ID: id, Limit: l.cfg.Limit, MinFree: l.cfg.MinFree, Memory: l.cfg.Memory,
		Observer: l.cfg.Observer, Registry: l.cfg.Registry,
	})
}

// Read sends the spool's content on out, and what is stored meanwhile, until head is
// done or until, if it is not null, has been sent. Then it returns nil. It closes out.
func (l *Log) Read(ctx, head context.Context, until oplog.OpTime, out chan<- oplog.Reply) error {
	defer close(out)
	g, ctx := errgroup.WithContext(ctx)
	head, stop := context.WithCancelCause(head)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	read := make(chan oplog.Reply)
	g.Go(func() error {
		err := l.spool.Read(head, read)
		if head.Err() != nil && ctx.Err() == nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return l.Wait(head) })
	g.Go(func() error {
		defer stop(errStop)
		return sendUntil(ctx, until, read, out)
	})
	return g.Wait()
}

// sendUntil forwards replies to out, up to and including the entry until if that is not
// null.
func sendUntil(ctx context.Context, until oplog.OpTime, in <-chan oplog.Reply, out chan<- oplog.Reply) error {
	for r := range in {
		last := false
		for i := range r.Entries {
			if !until.IsNull() && !r.Entries[i].OpTime.Before(until) {
				r.Entries, last = r.Entries[:i+1:i+1], true
				break
			}
		}
		select {
		case out <- r:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if last {
			return nil
		}
	}
	return nil
}

// Forget deletes from disk the entries before from, with which the next start would
// begin to read.
func (l *Log) Forget(from oplog.OpTime) error {
	l.started.From = from
	if err := l.spool.Forget(from); err != nil {
		return fmt.Errorf("truncate the spool: %w", err)
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

// Close stops fetching and keeps the files.
func (l *Log) Close() error { return l.end((*spool.Spool).Close, "close") }

// Remove stops fetching and deletes the files: they are no longer needed.
func (l *Log) Remove() error { return l.end((*spool.Spool).Remove, "remove") }

func (l *Log) end(how func(*spool.Spool) error, verb string) error {
	l.stopStoring()
	s := l.spool
	l.spool, l.id = nil, ""
	if s == nil {
		return nil
	}
	if err := how(s); err != nil {
		return fmt.Errorf("%s the spool: %w", verb, err)
	}
	return nil
}
