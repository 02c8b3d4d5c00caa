package initialsync

import (
	"context"
	"errors"
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

// NoteHeard keeps what was heard of the source next to the spool.
func (l *Log) NoteHeard(h spool.Heard) error { return spool.NoteHeard(l.dir, h) }

// Salvaged is the spool of a link whose source is lost.
type Salvaged struct {
	// First and Last are the first and the last entry that can be read.
	First, Last oplog.OpTime
	// Cut says where the files cannot be read any further, nil if they can be to their end.
	Cut *spool.Cut
	// Heard has the newest entry that the source has reported, Last or later, nil if there is none.
	Heard *spool.Heard
}

// Salvage opens what is on disk of a consistent link to read it from an entry on, without the
// source: Read sends it as far as it can be read, and nothing is ever deleted. It returns false if
// the entry is not there. With lock, it returns spool.ErrInUse while another process uses the
// files. C is the link's copy, nil if it has none.
func (l *Log) Salvage(instance string, c *checkpoint.Copy, from oplog.OpTime, lock bool) (Salvaged, bool, error) {
	if err := l.Close(); err != nil {
		return Salvaged{}, false, err
	}
	l.instance, l.dir = instance, l.DirOf(instance)
	if l.dir == "" {
		return Salvaged{}, false, nil
	}
	id := l.idOf(c)
	s, cut, err := spool.Salvage(l.spoolConfig(id), lock)
	if err != nil {
		return Salvaged{}, false, err
	}
	found := Salvaged{Cut: cut}
	if h, ok, unread := spool.ReadHeard(l.dir); unread == nil && ok {
		found.Heard = &h
	}
	if last := s.Disk(); !last.Last.IsNull() && (found.Heard == nil || last.Last.After(found.Heard.OpTime)) {
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
		return found, false, errors.Join(err, s.Close())
	}
	ended := &storing{stop: func(error) {}, known: make(chan struct{}), done: make(chan struct{})}
	ended.consistent.Store(true)
	close(ended.known)
	close(ended.done)
	l.spool, l.id, l.storing, l.copy, l.salvaged = s, id, ended, c, true
	return found, true, nil
}

func damaged(err error) bool {
	_, is := errors.AsType[*spool.DamagedError](err)
	return is
}
