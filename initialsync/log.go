package initialsync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Log is the source's oplog since the copy began. It is fetched from the member that is
// copied and spooled to disk, from before the first document is read until everything
// in the spool has been applied. It belongs to no attempt: while a target is
// unreachable for hours, the source's oplog must not roll over. Its methods are for one
// goroutine at a time.
type Log struct {
	cfg LogConfig
	dir string // for the spool

	spool *spool.Spool // nil if none is open
	id    string       // of the copy that the spool is for
	// member is the member that is copied, nil until it is known.
	member *Member
	// storing fills the spool, nil if nothing has since it was opened. It was started for
	// copy, which is kept as it is recorded, with a configuration whose From follows the
	// checkpoint.
	storing *storing
	copy    *checkpoint.Copy
	fetch   fetcher.Config
	running sync.WaitGroup
	// drained is the id of the copy of whose log the rest fits into memory, empty for none.
	drained string
}

// LogConfig says how much of the oplog is kept.
type LogConfig struct {
	// Link is the link's name.
	Link string
	// Dir is the folder for spools, empty if none is configured.
	Dir string
	// Limit, MinFree and Memory are those of [spool.Config].
	Limit, MinFree, Memory int64
	// SourceWait is that of [Options].
	SourceWait time.Duration
	// Run runs a fetch stage: Fetcher.Run, and what publishes its status.
	Run func(ctx context.Context, f *fetcher.Fetcher, out chan<- oplog.Reply) error

	Observer event.Observer
	Registry prometheus.Registerer
}

// NewLog returns a closed log.
func NewLog(cfg LogConfig) *Log { return &Log{cfg: cfg, dir: cfg.Dir} }

// Attach gives the log a folder of the link's own: links of the same name on two targets
// must not share one.
func (l *Log) Attach(link *checkpoint.Link) {
	if l.cfg.Dir != "" {
		sum := sha256.Sum256([]byte(link.Instance()))
		l.dir = filepath.Join(l.cfg.Dir, hex.EncodeToString(sum[:8]))
	}
}

// Dir returns the folder for the spool, empty if none is configured.
func (l *Log) Dir() string { return l.dir }

// Member returns the member that c is a copy of: the same one for all attempts.
func (l *Log) Member(c *checkpoint.Copy) *Member {
	if !l.member.of(c) {
		l.member = newMember(c, l.cfg.SourceWait)
	}
	return l.member
}

// storing is a running fetcher, whose replies are written to disk.
type storing struct {
	fetcher *fetcher.Fetcher
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
// log is closed: from fetch.From if the spool does not have that entry, and from the
// member that is copied for as long as c is not consistent. A fetcher that is already
// running continues.
func (l *Log) Start(ctx, soft context.Context, c *checkpoint.Copy, fetch fetcher.Config) error {
	if err := l.open(c); err != nil {
		return err
	}
	from := fetch.From
	err := l.spool.Start(from)
	if errors.Is(err, spool.ErrMissing) {
		// The spool was written on another machine, or starts too late: read everything
		// again.
		if err := l.Remove(); err != nil {
			return err
		}
		if err := l.open(c); err != nil {
			return err
		}
		err = l.spool.Start(from)
	}
	if err != nil {
		return fmt.Errorf("begin to read the spool at %s: %w", from, err)
	}
	l.advanced(c)
	if l.storing != nil && !l.storing.ended() {
		if c.Phase == checkpoint.Copied {
			// The attempt that recorded this may not have received the reply.
			l.storing.fetcher.Unpin()
		}
		return nil
	}
	l.fetch = fetch
	if _, last, ok := l.spool.Bounds(); ok {
		fetch.From = last
	}
	if c.Phase != checkpoint.Copied {
		fetch.Pinned = l.Member(c)
	}
	f, err := fetcher.New(fetch)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	st, to := &storing{fetcher: f, stop: stop, done: make(chan struct{})}, l.spool
	l.storing = st
	l.running.Go(func() {
		defer close(st.done)
		defer stop(nil)
		defer context.AfterFunc(soft, func() { stop(errStop) })()
		st.err = l.store(ctx, f, to)
	})
	return nil
}

// advanced is called with what is recorded of the copy: the entries that come in are
// checked by its Stop, and what Recover starts is for its phase.
func (l *Log) advanced(c *checkpoint.Copy) {
	l.copy = c
	l.Member(c)
}

func (l *Log) store(ctx context.Context, f *fetcher.Fetcher, to *spool.Spool) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := make(chan oplog.Reply)
	g.Go(func() error { return l.cfg.Run(ctx, f, fetched) })
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

// Finish records that the target is consistent, once the oplog has been applied up to
// the copy's Stop, if the member that was copied is unchanged. From then on any member may
// be read. It returns the updated copy.
func (l *Log) Finish(ctx context.Context, link *checkpoint.Link, source syncsource.Dialer) (checkpoint.Copy, error) {
	c := *link.Copy()
	if err := l.Member(&c).Check(ctx, source.Member(c.Host)); err != nil {
		return c, err
	}
	c.Phase = checkpoint.Copied
	if err := link.UpdateCopy(ctx, c, nil); err != nil {
		return c, err
	}
	l.advanced(&c)
	l.storing.fetcher.Unpin()
	return c, nil
}

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
		return l.Start(ctx, soft, l.copy, l.fetch)
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

// HasUnapplied reports whether there are entries on disk after applied.
func (l *Log) HasUnapplied(applied oplog.OpTime) bool {
	if l.spool == nil {
		return false
	}
	_, last, ok := l.spool.Bounds()
	return ok && last.After(applied)
}

// Serves reports whether the oplog from an entry on is read through the spool. After the
// copy, it is for as long as the spool has the entry and the target is far behind.
func (l *Log) Serves(c *checkpoint.Copy, from oplog.OpTime) (bool, error) {
	switch {
	case c == nil:
		return false, nil
	case c.Phase != checkpoint.Copied:
		return true, nil
	case l.dir == "" || l.drained == l.idOf(c):
		return false, nil
	}
	if err := l.open(c); err != nil {
		return false, err
	}
	first, last, ok := l.spool.Bounds()
	return ok && !from.Before(first) && from.Before(last), nil
}

func (l *Log) idOf(c *checkpoint.Copy) string {
	return fmt.Sprintf("%s/%d/%s/%d", l.cfg.Link, c.Number, c.Begin, c.Started.UnixMilli())
}

// open opens the spool of a copy. It stays open for all attempts.
func (l *Log) open(c *checkpoint.Copy) error {
	id := l.idOf(c)
	if l.spool != nil && l.id == id {
		return nil
	}
	if err := l.Close(); err != nil {
		return err
	}
	if l.dir == "" {
		return ErrNoSpool
	}
	s, err := l.openSpool(id)
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok {
		// Its content is at the source too, or the copy is void.
		l.logDamaged(damaged)
		if err := spool.Clear(l.dir); err != nil {
			return fmt.Errorf("remove the damaged spool in %s: %w", l.dir, err)
		}
		s, err = l.openSpool(id)
	}
	if err != nil {
		return fmt.Errorf("open the spool in %s: %w", l.dir, err)
	}
	l.spool, l.id = s, id
	return nil
}

func (l *Log) openSpool(id string) (*spool.Spool, error) {
	return spool.Open(spool.Config{
		Dir: l.dir, ID: id, Limit: l.cfg.Limit, MinFree: l.cfg.MinFree, Memory: l.cfg.Memory,
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
	l.fetch.From = from
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
