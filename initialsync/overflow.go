package initialsync

import (
	"errors"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Prepare opens the spool of a link that needs none yet, so that a folder that cannot be
// used, or has no room, is known before its oplog is no longer read into memory. Start fills it.
func (l *Log) Prepare(c *checkpoint.Copy) error {
	if err := l.open(c); err != nil {
		return err
	}
	why, err := l.spool.Lacks()
	if err == nil && why == "" {
		return nil
	}
	if _, _, ok := l.spool.Bounds(); !ok {
		err = errors.Join(err, l.Remove())
	}
	if err == nil {
		err = &spool.FullError{Dir: l.dir, Why: why}
	}
	return err
}

// Leave stops fetching: the oplog is read from the source from now on. The files stay until
// Remove, as the source may turn out not to have their entries.
func (l *Log) Leave() { l.stopStoring() }

// Resume reports whether the spool, which was left, has what the source turned out not to have
// from an entry on, or another process that uses it may have that. It is used for a while then.
func (l *Log) Resume(from oplog.OpTime) bool {
	if l.spool == nil {
		return l.inUse // by a process that has lost its lease, and may have the only copy
	}
	l.drained, l.resumed, l.missing = "", time.Now(), from
	return l.has(from)
}

// has reports whether the spool has an entry, and more after it.
func (l *Log) has(from oplog.OpTime) bool {
	first, last, ok := l.spool.Bounds()
	return ok && !from.Before(first) && from.Before(last)
}

// Storing reports whether the oplog is being fetched into the spool.
func (l *Log) Storing() bool { return l.storing != nil && !l.storing.ended() }

// isConsistent reports whether a link without this copy, or with it, is consistent.
func isConsistent(c *checkpoint.Copy) bool { return c == nil || c.Phase == checkpoint.Copied }

// found opens the spool of a consistent link if there is one on disk that may serve to read from
// an entry on, and reports whether one is open. It creates nothing, and removes one that does
// not. A spool that cannot be used is reported, but may not be needed: the source may have
// its entries.
func (l *Log) found(c *checkpoint.Copy, from oplog.OpTime) bool {
	l.inUse = false
	if l.spool != nil && l.id == l.idOf(c) {
		return true
	}
	there, err := spool.Found(l.dir)
	covers := l.spool != nil // that of another copy, which is closed first
	if err == nil && there && !covers {
		covers, err = spool.Covers(l.dir, from)
	}
	if err == nil && there {
		if covers {
			err = l.open(c)
		} else {
			err = spool.Clear(l.dir)
		}
	}
	if err == nil {
		return there && covers
	}
	l.inUse = errors.Is(err, spool.ErrInUse) && covers
	l.cfg.Observer.Log(slog.LevelWarn, "the spool cannot be used: the oplog is read from the source", slog.String(keyError, err.Error()))
	return false
}

// isOfDisk reports whether the stored entries can still be read after an error of the spool.
func isOfDisk(err error) bool {
	_, damaged := errors.AsType[*spool.DamagedError](err)
	return !damaged && !errors.Is(err, spool.ErrOrder)
}
