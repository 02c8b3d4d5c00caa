package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"

	"github.com/oplogrep/replicator/oplog"
)

// cursor reads records. It is for one goroutine.
type cursor struct {
	spool *Spool
	// file is the open file of the segment with that number, nil if none is open.
	file *os.File
	seg  segment
	buf  [headSize]byte
	// ahead is the head that was read last, of the record at.
	ahead head
	at    place
}

func (c *cursor) close() {
	if c.file != nil {
		_ = c.file.Close()
	}
	c.file = nil
}

// after returns the place after the record h, which is at p.
func (h *head) after(p place) place {
	return place{p.index + 1, p.number, p.offset + h.size()}
}

// locate sets p to the file that contains its record, and returns the file's state. It
// returns false if there is no such record yet.
func (s *Spool) locate(p *place) (segment, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return segment{}, false, errClosed
	}
	if p.index >= s.next {
		return segment{}, false, nil
	}
	i := sort.Search(len(s.segments), func(i int) bool { return s.segments[i].end() > p.index })
	if i == len(s.segments) {
		return segment{}, false, fmt.Errorf("spool: continue reading: %w: the next entry was removed", ErrMissing)
	}
	g := s.segments[i]
	if g.number != p.number {
		if p.index != g.index {
			return segment{}, false, fmt.Errorf("spool: continue reading before entry %s: %w: it was removed", g.first, ErrMissing)
		}
		p.number, p.offset = g.number, g.preamble
	}
	return *g, true, nil
}

// peek returns the head of the record at p, and sets p to the record's file. It returns
// false if there is no such record yet.
func (c *cursor) peek(p *place) (head, bool, error) {
	if c.at == *p && c.ahead.length > 0 {
		return c.ahead, true, nil
	}
	g, ok, err := c.spool.locate(p)
	if err != nil || !ok {
		return head{}, false, err
	}
	if c.file == nil || c.seg.number != g.number {
		c.close()
		if c.file, err = os.Open(g.path); err != nil {
			return head{}, false, lost(&ReadError{g.path, err})
		}
	}
	c.seg = g
	if p.offset+headSize > g.size {
		return head{}, false, &DamagedError{g.path, p.offset, errTorn}
	}
	if err := c.readAt(c.buf[:], p.offset); err != nil {
		return head{}, false, err
	}
	h, err := parseHead(c.buf[:], p.offset, g.seed)
	if err != nil {
		return head{}, false, &DamagedError{g.path, p.offset, err}
	}
	if p.offset+h.size() > g.size {
		return head{}, false, &DamagedError{g.path, p.offset, errTorn}
	}
	c.ahead, c.at = h, *p
	return h, true, nil
}

func (c *cursor) readAt(b []byte, offset int64) error {
	_, err := c.file.ReadAt(b, offset)
	switch {
	case errors.Is(err, io.EOF):
		return &DamagedError{c.seg.path, offset, errTorn}
	case err != nil:
		return &ReadError{c.seg.path, err}
	}
	return nil
}

// payload reads the payload of the record h, which peek returned for p, and checks it.
// It uses buf if that is large enough.
func (c *cursor) payload(h *head, p place, buf []byte) ([]byte, error) {
	buf = slices.Grow(buf[:0], int(h.length))[:h.length]
	if err := c.readAt(buf, p.offset+headSize); err != nil {
		return nil, err
	}
	if err := h.check(buf, c.seg.seed); err != nil {
		return nil, &DamagedError{c.seg.path, p.offset, err}
	}
	return buf, nil
}

// entries reads the entries of the record h, which peek returned for p, into newly
// allocated memory.
func (c *cursor) entries(h *head, p place) ([]oplog.Entry, error) {
	buf, err := c.payload(h, p, make([]byte, 0, h.length))
	if err != nil {
		return nil, err
	}
	list, err := h.parse(buf)
	if err != nil {
		return nil, &DamagedError{c.seg.path, p.offset, err}
	}
	return list, nil
}
