package initialsync

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// mostRelayFile and leastRelayFile limit the size of a file of a relay log, in bytes.
	mostRelayFile  = 64 << 20
	leastRelayFile = 1 << 20
	// sentEvery is how often to check whether everything stored was sent.
	sentEvery = 10 * time.Millisecond
	// heardEvery is how often the newest optime heard of the source is stored.
	heardEvery = time.Second
)

// AwaitSent blocks until fetching has ended and everything that is stored was sent on, and returns
// true. It returns false at once if more is stored than is in memory, or once ctx is done.
func (l *Log) AwaitSent(ctx context.Context) bool {
	s, st := l.spool, l.storing
	if s == nil || st == nil || !s.AllRead() {
		return false
	}
	select {
	case <-st.done:
	case <-ctx.Done():
		return false
	}
	tick := time.NewTicker(sentEvery)
	defer tick.Stop()
	for !s.AllSent() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// relays reports whether the spool of a copy, nil for none, is a relay log, which may have what the
// source does not have any more.
func (l *Log) relays(c *checkpoint.Copy) bool { return l.cfg.Relay > 0 && isConsistent(c) }

// discardFiles removes the files of a damaged spool that is not open. Those of a relay log are set
// aside: Salvage reads what can be read of them.
func (l *Log) discardFiles(c *checkpoint.Copy) error {
	if !l.relays(c) {
		return spool.Clear(l.dir)
	}
	l.noAside = false
	l.cfg.Observer.Log(slog.LevelWarn, "the damaged relay log is kept until the target has what can be read of it: replicator promote reads it", slog.String(keyDir, spool.AsideDir(l.dir)))
	return spool.SetAside(l.dir)
}

// forgetAside removes the files of a damaged relay log that were set aside, once the target has it. What cannot be
// removed now is removed later.
func (l *Log) forgetAside(from oplog.OpTime) {
	if l.noAside || l.cfg.Relay == 0 {
		return
	}
	none, err := spool.ForgetAside(l.spoolConfig(l.id), from)
	l.noAside = none && err == nil
}

// NoteHeardLoop stores, next to the spool, the newest entry that any member of the source is known to
// have, read or not, committed or not. It runs until ctx is done.
func (l *Log) NoteHeardLoop(ctx context.Context, heard func() spool.Heard) error {
	tick := time.NewTicker(heardEvery)
	defer tick.Stop()
	last, dir, id := l.heardBefore(), l.dir, l.id
	note := func() {
		h := heard()
		h.ID = id
		switch {
		case h.OpTime.IsNull(), h.At.IsZero(), h.OpTime.Before(last.OpTime):
		case h.OpTime.After(last.OpTime), h.At.Sub(last.At) >= heardEvery:
			if err := spool.NoteHeard(dir, h); err == nil {
				last = h
			}
		}
	}
	for {
		note()
		select {
		case <-tick.C:
		case <-ctx.Done():
			note()
			return nil
		}
	}
}

// heardBefore returns what another attempt, or process, has stored for the same spool: while only a member that lags
// can be asked, the source is still known to have had that.
func (l *Log) heardBefore() spool.Heard {
	h, ok, err := spool.ReadHeard(l.dir)
	if !ok || err != nil || h.ID != "" && h.ID != l.id {
		return spool.Heard{}
	}
	return h
}

// Salvaged is the spool of a link whose source is lost.
type Salvaged struct {
	// Dir is the folder of the files.
	Dir string
	// First and Last are the first and the last entry that can be read.
	First, Last oplog.OpTime
	// Damage says where the files cannot be read any further, nil if they can be to their end.
	Damage *spool.Damage
	// Heard has the newest entry that the source has reported, Last or later, nil if there is none.
	Heard *spool.Heard
}

// Salvage opens the files on disk of a consistent link to read them from an entry on, without the
// source: Read sends them as far as they can be read, and nothing is ever deleted. It returns false if
// the entry is not there. Of files that were set aside because they are damaged and those that were
// written after that, it opens those that reach further. With lock, it returns spool.ErrInUse while
// another process uses the files. C is the link's copy, nil if it has none.
func (l *Log) Salvage(instance string, c *checkpoint.Copy, from oplog.OpTime, lock bool) (Salvaged, bool, error) {
	if err := l.Close(); err != nil {
		return Salvaged{}, false, err
	}
	l.instance, l.dir = instance, l.dirOf(instance)
	if l.dir == "" {
		return Salvaged{}, false, nil
	}
	cfg := l.spoolConfig(l.idOf(c))
	s, found, err := salvage(cfg, from, lock)
	if err != nil {
		return Salvaged{}, false, err
	}
	cfg.Dir, cfg.Registry = spool.AsideDir(l.dir), nil
	aside, older, err := salvage(cfg, from, false)
	if err != nil {
		return Salvaged{}, false, errors.Join(err, closed(s))
	}
	if aside != nil && (s == nil || older.Last.After(found.Last)) {
		s, aside, found, older = aside, s, older, found
	}
	if err := closed(aside); err != nil {
		return Salvaged{}, false, errors.Join(err, closed(s))
	}
	found.Heard = later(found.Heard, older.Heard)
	if h, ok, unread := spool.ReadHeard(l.dir); unread == nil && ok {
		found.Heard = later(&h, found.Heard)
	}
	if s == nil {
		return found, false, nil
	}
	ended := &storing{stop: func(error) {}, known: make(chan struct{}), done: make(chan struct{})}
	ended.consistent.Store(true)
	close(ended.known)
	close(ended.done)
	l.spool, l.id, l.storing, l.copy, l.salvaged = s, cfg.ID, ended, c, true
	return found, true, nil
}

// salvage opens the files of a folder to read them from an entry on. It returns a nil Spool if the
// entry is not in them. It always returns their content.
func salvage(cfg spool.Config, from oplog.OpTime, lock bool) (*spool.Spool, Salvaged, error) {
	s, cut, err := spool.Salvage(cfg, lock)
	if err != nil {
		return nil, Salvaged{}, err
	}
	found := Salvaged{Dir: cfg.Dir, Damage: cut}
	if last := s.Disk(); !last.Last.IsNull() {
		found.Heard = &spool.Heard{OpTime: last.Last, At: last.Newest}
	}
	ok := false
	if found.First, found.Last, ok = s.Bounds(); ok {
		err = s.Start(from)
		ok = err == nil
	}
	if errors.Is(err, spool.ErrMissing) || damaged(err) {
		err = nil
	}
	if err != nil || !ok {
		return nil, found, errors.Join(err, s.Close())
	}
	return s, found, nil
}

func closed(s *spool.Spool) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// later returns the one that is later, the first one if they are the same.
func later(a, b *spool.Heard) *spool.Heard {
	if a == nil || b != nil && b.OpTime.After(a.OpTime) {
		return b
	}
	return a
}

func damaged(err error) bool {
	_, is := errors.AsType[*spool.DamagedError](err)
	return is
}
