package fetcher

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Config has the settings of a Fetcher.
type Config struct {
	// From is the entry to begin with. It is sent too.
	From oplog.OpTime
	// Until, if not null, is an entry: Run sends nothing after it and ends.
	Until oplog.OpTime
	// Resolver chooses the member to read, Watcher observes the members.
	Resolver *syncsource.Resolver
	Watcher  *syncsource.Watcher
	// MirrorMember is the _id of the member of the set's configuration that represents
	// this mirror, -1 for none.
	MirrorMember int
	// Copy, if not nil, is the copy that needs the oplog, until Copied.
	Copy *Copy
	// Reader says how a member is read.
	Reader ReaderConfig
}

// Fetcher is the fetch stage: it chooses a member of the source, reads its oplog for as
// long as that member is worth reading, and then chooses again.
type Fetcher struct {
	cfg    Config
	reader *Reader
	// copied is set by Copied.
	copied atomic.Bool

	// The following fields belong to Run, except those that mu guards.

	// last is the entry that was sent last, or the one to begin with, which is still to
	// be sent while first is true.
	last  oplog.OpTime
	first bool
	// reading is the member that is read, or was last.
	reading syncsource.Source
	// left is set once a member has been left: the same one is not read again at once.
	left bool
	// missing are the members that do not have last in their history.
	missing map[string]bool
	// unfit is the error of Copy.Check, nil if there was none.
	unfit error
	// noMemberSince is since when there is no member to read from, zero while there is one.
	noMemberSince time.Time
	// newestAt is when a member that was read last had the newest commit point of the set, zero before.
	newestAt time.Time

	mu     sync.Mutex
	status Status
	news   chan struct{} // closed when status is replaced
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Fetcher, error) {
	f := &Fetcher{cfg: cfg, last: cfg.From, first: true, missing: map[string]bool{}, news: make(chan struct{})}
	cfg.Reader.onReply, cfg.Reader.onError = f.onReply, f.onError
	var err error
	f.reader, err = NewReader(cfg.Reader)
	return f, err
}

// Run sends replies on out, in the order of the oplog, each entry once, and closes out
// before it returns: nil after Until has been sent, the cause of ctx once that is done,
// and an error where no member can be read from for a reason that does not pass.
func (f *Fetcher) Run(ctx context.Context, out chan<- oplog.Reply) error {
	defer close(out)
	for {
		err := f.readOne(ctx, out)
		switch {
		case errors.Is(err, errUntil):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
	}
}

// errUntil is returned by send after Until has been sent.
var errUntil = errors.New("the entry Config.Until was sent")

// errUnfit is returned by send after Copy.Check has failed.
var errUnfit = errors.New("Copy.Check refused an entry")

// readOne chooses a member and reads it. Nil means to choose again.
func (f *Fetcher) readOne(ctx context.Context, out chan<- oplog.Reply) error {
	src, err := f.cfg.Resolver.Resolve(ctx, f.last)
	if err != nil {
		return f.noSource(ctx, err)
	}
	if src.Same && f.left {
		if err := pause(ctx, syncsource.RetryInterval, nil); err != nil {
			return err
		}
	}
	f.reading = src
	f.update(func(s *Status) { s.Why = "" })
	res, err := f.reader.Tail(ctx, src.Host, src.Caller, f.last, f.first,
		func(ctx context.Context, r oplog.Reply) error { return f.send(ctx, out, r) })
	f.left = true
	if res.Emitted {
		f.first = false
	}
	if res.Last.After(f.last) {
		clear(f.missing)
	}
	f.last = res.Last
	f.update(func(s *Status) { s.Host, s.Caller = "", nil })
	switch {
	case errors.Is(err, errUnfit):
		return f.unfit
	case err == nil || ctx.Err() != nil || errors.Is(err, errUntil):
		return err
	}
	return f.judge(ctx, src.Host, err)
}

// onReply decides whether the member is left after a reply.
func (f *Fetcher) onReply(m Metadata) decision {
	now := time.Now()
	m.Behind = f.behind(&m, now)
	f.update(func(s *Status) {
		s.Host, s.Caller, s.Stale = f.reading.Host, f.reading.Caller, false
		s.Metadata, s.HeardAt = m, now
		s.Replies++
	})
	f.noMemberSince = time.Time{}
	v := f.cfg.Resolver.OnReply(m.LastFetched, m.sourceState())
	switch {
	case v.Change && v.Drop:
		return stopBefore
	case v.Change:
		return stopAfter
	}
	return goOn
}

// onError reports whether to leave the member instead of opening its cursor again.
func (f *Fetcher) onError(error) bool { return f.cfg.Resolver.OnError(f.last).Change }

// send sends a reply on out, as far as Until.
func (f *Fetcher) send(ctx context.Context, out chan<- oplog.Reply, r oplog.Reply) error {
	r.Entries = cut(r.Entries, f.cfg.Until)
	if c := f.copying(); c != nil {
		if f.unfit = c.Check(ctx, r.Entries); f.unfit != nil {
			return errUnfit
		}
	}
	// Once it is sent, the entries belong to the receiver.
	last := r.Entries[len(r.Entries)-1].OpTime
	if err := f.deliver(ctx, out, r); err != nil {
		return err
	}
	f.update(func(s *Status) { s.Last = last })
	if !f.cfg.Until.IsNull() && !last.Before(f.cfg.Until) {
		return errUntil
	}
	return nil
}

// cut returns entries up to until. The entries after it may not be due for a long time, and the
// lanes would not be drained before that.
func cut(entries []oplog.Entry, until oplog.OpTime) []oplog.Entry {
	if until.IsNull() {
		return entries
	}
	for i := range entries {
		if !entries[i].OpTime.Before(until) {
			return entries[: i+1 : i+1]
		}
	}
	return entries
}

// deliver blocks until a reply is received.
func (f *Fetcher) deliver(ctx context.Context, out chan<- oplog.Reply, r oplog.Reply) error {
	select {
	case out <- r:
		return nil
	default:
	}
	tick := time.NewTicker(syncsource.RetryInterval)
	defer tick.Stop()
	since := time.Now()
	defer f.update(func(s *Status) { s.Blocked = time.Time{} })
	for {
		select {
		case out <- r:
			return nil
		case <-tick.C:
			f.update(func(s *Status) { s.Blocked = since }) // the lag of the target grows
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
