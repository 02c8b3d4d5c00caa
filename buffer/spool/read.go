package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/oplog"
)

// Start sets the entry that the next Read sends first: one that the spool has, or the
// first one to be stored. It returns ErrMissing if the spool has entries but not that
// one. It must not be called while Read runs; Store may run.
func (s *Spool) Start(from oplog.OpTime) error {
	s.mu.Lock()
	running, isClosed := s.reading, s.isClosed
	s.mu.Unlock()
	switch {
	case isClosed:
		return errClosed
	case running:
		return fmt.Errorf("spool: start at entry %s: %w", from, errRunning)
	}
	at, err := s.find(from)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = &start{from, at}
	return nil
}

// find returns the record with an entry, nil if the spool is empty.
func (s *Spool) find(from oplog.OpTime) (*place, error) {
	s.mu.Lock()
	first, last, ok := s.bounds()
	var at place
	for _, g := range s.segments {
		if g.records > 0 && !g.last.Before(from) {
			at = place{g.index, g.number, g.preamble}
			break
		}
	}
	s.mu.Unlock()
	if !ok {
		return nil, nil
	}
	missing := fmt.Errorf("spool: entry %s: %w, which has %s to %s", from, ErrMissing, first, last)
	if from.Before(first) || from.After(last) {
		return nil, missing
	}
	c := cursor{spool: s}
	defer c.close()
	for {
		h, ok, err := c.peek(&at)
		if err != nil {
			return nil, err
		}
		if !ok || h.first.After(from) {
			return nil, missing
		}
		if h.last.Before(from) {
			at = h.after(at)
			continue
		}
		list, err := c.entries(&h, at)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if list[i].OpTime.Equal(from) {
				return &at, nil
			}
		}
		return nil, missing
	}
}

// Read sends everything from the entry of Start on, in order and within the memory
// budget, on out, until ctx is done; then it returns the cause. It closes out. Without
// a Start it begins with the first stored entry. Entries that are stored meanwhile, by
// any number of calls of Store, are sent too. If the spool is empty, the first entry
// that Store receives must be that of Start.
func (s *Spool) Read(ctx context.Context, out chan<- oplog.Reply) error {
	defer close(out)
	from, err := s.beginRead()
	if err != nil {
		return fmt.Errorf("spool: read: %w", err)
	}
	defer s.endRead()
	return s.handOnLoop(ctx, out, from)
}

// beginRead sets where to read from. It returns the first entry to send, null for any.
// Store may run meanwhile.
func (s *Spool) beginRead() (from oplog.OpTime, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.start != nil && s.start.at == nil && s.entries > 0 {
		// The spool was empty then.
		begin := s.start
		s.mu.Unlock()
		at, err := s.find(begin.from)
		s.mu.Lock()
		if err != nil {
			return from, err
		}
		begin.at = at
	}
	switch {
	case s.isClosed:
		return from, errClosed
	case s.reading:
		return from, errRunning
	}
	begin := s.start
	s.start, s.want = nil, nil
	s.account = buffer.Account{}
	s.waiting = time.Time{}
	s.reading = true
	s.read = place{index: s.next}
	switch {
	case begin != nil && begin.at != nil:
		s.read = *begin.at
		from = begin.from
	case begin != nil:
		s.want = &begin.from
	case len(s.segments) > 0:
		s.read.index = s.segments[0].index
	}
	return from, nil
}

// endRead discards the waiting replies. Those sent on will still be released.
func (s *Spool) endRead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading, s.want = false, nil
	s.account.Drop()
	s.noteMemory(true)
}

// handOnLoop sends the waiting replies, from entry from on, and reads further records
// while there is memory.
func (s *Spool) handOnLoop(ctx context.Context, out chan<- oplog.Reply, from oplog.OpTime) error {
	c := cursor{spool: s}
	defer c.close()
	for {
		h, at, mayRead, err := s.mayRead(&c)
		if err != nil {
			return err
		}
		next, queued := s.head()
		to := out
		if !queued {
			to = nil
		}
		if mayRead {
			select {
			case to <- next:
				s.sent()
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			default:
			}
			if err := s.readBack(&c, &h, at, from); err != nil {
				return err
			}
			continue
		}
		select {
		case to <- next:
			s.sent()
		case <-s.woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AllRead reports whether Read runs and has read everything that is stored, so that the entries
// not yet applied are in memory.
func (s *Spool) AllRead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading && s.read.index == s.next
}

// AllSent reports whether Read runs and has sent everything that is stored.
func (s *Spool) AllSent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading && s.read.index == s.next && s.account.Stats().Replies == 0
}

// mayRead returns the record to read next, and reports whether there is one, and memory
// for it.
func (s *Spool) mayRead(c *cursor) (h head, at place, ok bool, err error) {
	s.mu.Lock()
	at = s.read
	ok = at.index < s.next && s.account.Stats().Replies < maxReplies
	s.mu.Unlock()
	if !ok {
		return h, at, false, nil
	}
	if h, ok, err = c.peek(&at); err != nil || !ok {
		return h, at, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ok = s.account.Admits(h.memory(), s.room)
	s.noteMemory(ok)
	return h, at, ok, nil
}

// noteMemory records whether there is memory to read further. mu is held.
func (s *Spool) noteMemory(enough bool) {
	switch {
	case !enough && s.waiting.IsZero():
		s.waiting = time.Now()
	case enough:
		s.waiting = time.Time{}
	}
}

// head returns the reply to send next, false if there is none yet.
func (s *Spool) head() (oplog.Reply, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.account.Head()
}

func (s *Spool) sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account.Sent()
}

// readBack reads a record, without the entries before from.
func (s *Spool) readBack(c *cursor, h *head, at place, from oplog.OpTime) error {
	list, err := c.entries(h, at)
	if err != nil {
		return err
	}
	skip := 0
	for !from.IsNull() && skip < len(list) && list[skip].OpTime.Before(from) {
		skip++
	}
	s.metrics.readBytes.Add(float64(h.size()))
	s.metrics.readEntries.Add(float64(len(list)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = h.after(at)
	if skip == len(list) {
		return errors.New("spool: invariant: the record of the first entry does not have it")
	}
	s.account.Add(oplog.Reply{Entries: list[skip:], Bytes: h.memory(), Received: h.received})
	return nil
}
