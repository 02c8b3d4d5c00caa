package spool

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// waiter waits for an entry at or after ts: then done is closed. If there is no room
// for the entry, err is set before.
type waiter struct {
	ts   bson.Timestamp
	done chan error
}

// WaitFor returns once an entry at or after ts was stored. If there is no room for it,
// it returns a *FullError: the caller may have to finish before anything can be
// removed.
func (s *Spool) WaitFor(ctx context.Context, ts bson.Timestamp) error {
	s.mu.Lock()
	w := waiter{ts, make(chan error, 1)}
	s.waiters = append(s.waiters, w)
	s.tellWaiters()
	s.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	default:
	}
	select {
	case err := <-w.done:
		return err
	case <-s.closed:
		return errClosed
	case <-ctx.Done():
		s.forgetWaiter(w)
		return context.Cause(ctx)
	}
}

// tellWaiters wakes the waiters whose entry is stored, or has no room. mu is held.
func (s *Spool) tellWaiters() {
	rest := s.waiters[:0]
	for _, w := range s.waiters {
		switch {
		case !s.last.IsNull() && oplog.CompareTimestamps(s.last.TS, w.ts) >= 0:
			close(w.done)
		case !s.full.IsZero():
			w.done <- &FullError{Dir: s.cfg.Dir, Why: s.why}
		default:
			rest = append(rest, w)
		}
	}
	clear(s.waiters[len(rest):])
	s.waiters = rest
}

func (s *Spool) forgetWaiter(w waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.waiters {
		if s.waiters[i].done == w.done {
			s.waiters = append(s.waiters[:i], s.waiters[i+1:]...)
			return
		}
	}
}

// Commands reads the stored entries after after, up to and including until, that are
// commands (op c), in order, and calls yield with each. The entry is a view, valid
// until yield returns. It may be called while Store runs. It returns ErrMissing if the
// entries after after are missing, or have been removed; call WaitFor first for entries
// that are not stored yet.
func (s *Spool) Commands(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	return s.walk(ctx, "c", after, until, yield)
}

// Inserts is like Commands, for entries that are inserts or commands: the latter
// include groups of operations.
func (s *Spool) Inserts(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	return s.walk(ctx, "ic", after, until, yield)
}

// walk calls yield with the entries whose op is one of the letters in kinds.
func (s *Spool) walk(ctx context.Context, kinds string, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	if oplog.CompareTimestamps(after.TS, until) >= 0 {
		return nil
	}
	at, err := s.recordAfter(after)
	if err != nil || at == nil {
		return err
	}
	c := cursor{spool: s}
	defer c.close()
	var buf []byte
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h, ok, err := c.peek(at)
		if err != nil || !ok || oplog.CompareTimestamps(h.first.TS, until) > 0 {
			return err
		}
		if h.last.After(after) {
			if buf, err = c.payload(&h, *at, buf); err != nil {
				return err
			}
			if err := c.walk(buf, *at, kinds, after, until, yield); err != nil {
				return err
			}
		}
		*at = h.after(*at)
	}
}

// recordAfter returns the record at which the entries after after begin, nil if there is
// none.
func (s *Spool) recordAfter(after oplog.OpTime) (*place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return nil, errClosed
	}
	first, _, ok := s.bounds()
	if !ok {
		return nil, nil
	}
	if !after.IsNull() && after.Before(first) {
		return nil, fmt.Errorf("spool: entries after %s: %w, which begins with %s", after, ErrMissing, first)
	}
	for _, g := range s.segments {
		if g.records > 0 && g.last.After(after) {
			return &place{g.index, g.number, g.preamble}, nil
		}
	}
	return nil, nil
}

// walk calls yield with the entries of a payload whose op is one of the letters in
// kinds.
func (c *cursor) walk(payload []byte, at place, kinds string, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	for len(payload) > 0 {
		doc, err := cutDoc(payload)
		if err != nil {
			return &DamagedError{c.seg.path, at.offset, err}
		}
		payload = payload[len(doc):]
		op, ok := rawbson.Lookup(doc, "op")
		kind, isText := op.Text()
		if ok && isText && !strings.Contains(kinds, kind) {
			continue
		}
		// ParseEntry reports a missing op.
		e, err := oplog.ParseEntry(doc)
		if err != nil {
			return &DamagedError{c.seg.path, at.offset, err}
		}
		if !e.OpTime.After(after) || oplog.CompareTimestamps(e.OpTime.TS, until) > 0 {
			continue
		}
		if err := yield(&e); err != nil {
			return err
		}
	}
	return nil
}
