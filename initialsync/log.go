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
)

// Log is the part of the source's oplog that is spooled to disk: since a copy began, or
// since the target of a consistent link made no progress. It is fetched, from any member,
// from before the first document is read, or from the checkpoint, until everything in the
// spool has been applied. It belongs to no attempt: while a target is
// unreachable for hours, the source's oplog must not roll over. Its methods are for one
// goroutine at a time.
type Log struct {
	cfg LogConfig
	dir string // for the spool
	// instance is that of the link, for the id of a spool that belongs to no copy.
	instance string

	spool *spool.Spool // nil if none is open
	id    string       // of the copy, or the link, that the spool is for
	// entries checks the fetched entries.
	entries entries
	// storing fills the spool, nil if nothing has since it was opened. It was started for
	// copy, which is kept as it is recorded, nil if there is none, with a configuration
	// whose From follows the checkpoint.
	storing *storing
	copy    *checkpoint.Copy
	fetch   fetcher.Config
	running sync.WaitGroup
	// unforgotten means that the last Forget has failed, and was logged.
	unforgotten bool
	// drained is the id of the spool of which the rest fits into memory, as of drainedAt;
	// empty for none.
	drained   string
	drainedAt time.Time
	// inUse means that another process uses the spool, which may have what the source has not.
	inUse bool
	// resumed is when the spool was needed after all, missing the entry that the source did not
	// have then.
	resumed time.Time
	missing oplog.OpTime
	// noAside means that nothing is set aside of a damaged relay log.
	noAside bool
	// salvaged means that the spool is only read: nothing of it is deleted.
	salvaged bool
}

// LogConfig says how much of the oplog is kept.
type LogConfig struct {
	// Link is the link's name.
	Link string
	// Dir is the folder for spools, empty if none is configured.
	Dir string
	// Limit and MinFree are those of [spool.Config].
	Limit, MinFree int64
	// Writer is that of [spool.Config].
	Writer spool.Writer
	// Relay is the size of a relay log in bytes, 0 for none: then a consistent link that keeps up
	// is read through the spool too.
	Relay int64
	// Memory returns the spool's share of memory, which depends on what else the process
	// does: Start and Serves call it. Nil means the default of [spool.Config].
	Memory func() int64
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
	l.instance = link.Instance()
	l.dir = l.dirOf(l.instance)
}

// DirOf returns the folder for the spool of an instance of the link, empty if no folder is
// configured.
func (l *Log) dirOf(instance string) string {
	if l.cfg.Dir == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(instance))
	return filepath.Join(l.cfg.Dir, hex.EncodeToString(sum[:8]))
}

// Dir returns the folder for the spool, empty if none is configured.
func (l *Log) Dir() string { return l.dir }

// errStop is the cause with which storing is canceled.
var errStop = errors.New("the oplog is not read any further")

// ErrNoSpool reports a copy that has no folder for the oplog.
var ErrNoSpool = errors.New("a copy needs a folder for the oplog, and none is given (--spool-dir)")

// ErrNotCopied reports a link whose target was never consistent.
var ErrNotCopied = errors.New("the target is not consistent yet: the copy, or the oplog since it began, was not applied to its end")

// Start opens the spool and fetches the oplog into it until ctx or soft is done, or the
// log is closed: from fetch.From if the spool does not have that entry. A fetcher that is
// already running continues. Without a copy, c is nil.
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
	l.drained = ""
	if l.Storing() {
		if isConsistent(c) {
			// The attempt that recorded this may not have received the reply.
			l.storing.copied()
		}
		return nil
	}
	l.fetch = fetch
	if _, last, ok := l.spool.Bounds(); ok {
		fetch.From = last
	}
	if !isConsistent(c) {
		fetch.Copy = &fetcher.Copy{Wait: l.cfg.SourceWait, Check: l.entries.check}
	}
	return l.startStoring(ctx, soft, fetch)
}

// advanced is called with the recorded progress of the copy: the entries that come in are
// checked by its Stop, and what Recover starts is for its phase.
func (l *Log) advanced(c *checkpoint.Copy) {
	l.copy = c
	if c != nil {
		l.entries.advanced(c)
	}
}

// Finish records that the target is consistent, once the oplog has been applied up to
// the copy's Stop. It returns the updated copy.
func (l *Log) Finish(ctx context.Context, link *checkpoint.Link) (checkpoint.Copy, error) {
	c := *link.Copy()
	c.Phase = checkpoint.Copied
	if err := link.UpdateCopy(ctx, c, nil); err != nil {
		return c, err
	}
	l.advanced(&c)
	l.storing.copied()
	return c, nil
}

// Recover discards a spool that was found damaged, by the fetcher or by an attempt that
// ended with err: its content is fetched again. If the fetcher found it, fetching
// restarts at once, as the next attempt may take long to get that far; that of a
// consistent link is read by the next attempt, if the source still has it. A spool that could
// not be read is closed. If the fetcher has failed otherwise, Recover returns that error, but not
// for a consistent link, for which the next attempt decides.
func (l *Log) Recover(ctx, soft context.Context, err error) error {
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok && l.spool != nil {
		return l.discard(damaged)
	}
	if _, unread := errors.AsType[*spool.ReadError](err); unread {
		return l.forgive(l.Close()) // The next attempt opens it again, if it can be read.
	}
	if l.storing == nil || !l.storing.ended() {
		return nil
	}
	failed, consistent := l.storing.err, l.storing.consistent.Load()
	if damaged, ok := errors.AsType[*spool.DamagedError](failed); ok {
		if err := l.discard(damaged); err != nil || consistent {
			return err
		}
		return l.Start(ctx, soft, l.copy, l.fetch)
	}
	switch {
	case !consistent, errors.Is(failed, fetcher.ErrOtherHistory) && !l.Disown():
		return failed
	}
	// The next attempt reads the files that are there, or from the source.
	return l.forgive(l.Close())
}

// Disown removes the spool of a consistent link if fetching found that its end is not in the
// source's history. The checkpoint may be: a restart can read on from there. Disown reports
// whether the next attempt can, as nothing of the spool was applied.
func (l *Log) Disown() bool {
	if l.storing == nil || !l.storing.ended() || !l.storing.consistent.Load() || !errors.Is(l.storing.err, fetcher.ErrOtherHistory) {
		return false
	}
	unknown, err := !l.storing.isKnown(), l.Remove()
	if err != nil {
		_ = l.forgive(err)
		return false
	}
	return unknown
}

func (l *Log) discard(why *spool.DamagedError) error {
	l.logDamaged(why)
	if l.relays(l.copy) {
		return l.forgive(errors.Join(l.Close(), l.discardFiles(l.copy)))
	}
	return l.forgive(l.Remove())
}

// forgive logs an error of the spool's disk where the link is consistent, and returns it
// otherwise: files that are left are judged again before they are read.
func (l *Log) forgive(err error) error {
	if err == nil || !isConsistent(l.copy) {
		return err
	}
	l.cfg.Observer.Log(slog.LevelWarn, "the spool's directory cannot be written to", slog.String(keyError, err.Error()))
	return nil
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

// Serves reports whether the oplog from an entry on is read through the spool. That of a
// consistent link is for as long as the spool has the entry and the target is far behind.
func (l *Log) Serves(c *checkpoint.Copy, from oplog.OpTime) (bool, error) {
	switch {
	case !isConsistent(c):
		return true, nil
	case l.dir == "" || l.drained == l.idOf(c) && time.Since(l.drainedAt) < drainTime:
		return false, nil
	}
	if l.failed() {
		if err := l.forgive(l.Close()); err != nil { // The files have to be read again.
			return false, err
		}
	}
	return l.found(c, from) && l.has(from), nil
}

// idOf returns the id of the spool of a copy, or of a link that has none.
func (l *Log) idOf(c *checkpoint.Copy) string {
	if c == nil {
		return l.cfg.Link + "/" + l.instance
	}
	return fmt.Sprintf("%s/%d/%s/%d", l.cfg.Link, c.Number, c.Begin, c.Started.UnixMilli())
}

// open opens the spool of a copy. It stays open for all attempts.
func (l *Log) open(c *checkpoint.Copy) error {
	id := l.idOf(c)
	if l.spool != nil && l.id == id {
		if l.cfg.Memory != nil {
			l.spool.SetMemory(l.cfg.Memory())
		}
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
		if err := l.discardFiles(c); err != nil {
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
	cfg := l.spoolConfig(id)
	return spool.Open(cfg)
}

func (l *Log) spoolConfig(id string) spool.Config {
	cfg := spool.Config{
		Dir: l.dir, ID: id, Limit: l.cfg.Limit, MinFree: l.cfg.MinFree, Writer: l.cfg.Writer,
		Observer: l.cfg.Observer, Registry: l.cfg.Registry,
	}
	if l.cfg.Relay > 0 {
		// Only whole files can be removed.
		cfg.SegmentBytes = max(min(mostRelayFile, l.cfg.Relay/8), leastRelayFile)
		cfg.Limit = max(cfg.Limit, l.cfg.Relay)
	}
	if l.cfg.Memory != nil {
		cfg.Memory = l.cfg.Memory()
	}
	return cfg
}

// Read sends the spool's content on out, and the entries stored meanwhile, until head is
// done or until, if it is not null, has been sent. Then it returns nil. It closes out. What
// an earlier process has left of a consistent link is not sent before the source has shown that
// it is of its history.
func (l *Log) Read(ctx, head context.Context, until oplog.OpTime, out chan<- oplog.Reply) error {
	defer close(out)
	g, ctx := errgroup.WithContext(ctx)
	head, stop := context.WithCancelCause(head)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	read := make(chan oplog.Reply)
	g.Go(func() error {
		if !l.storing.awaitKnown(head) {
			close(read)
			return nil
		}
		err := l.spool.Read(head, read)
		if head.Err() != nil && ctx.Err() == nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return l.wait(head) })
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
// begin to read. If they cannot be deleted, the next call tries again, and that is not an error
// for a consistent link.
func (l *Log) Forget(from oplog.OpTime) error {
	if l.salvaged {
		return nil
	}
	l.fetch.From = from
	l.forgetAside(from)
	err := l.spool.Forget(from)
	switch {
	case err == nil:
		l.unforgotten = false
		return nil
	case !isConsistent(l.copy):
		return fmt.Errorf("truncate the spool: %w", err)
	case !l.unforgotten:
		l.unforgotten = true
		return l.forgive(err)
	}
	return nil
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
