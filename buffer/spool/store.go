package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// syncEvery is the maximum time until written data is synced.
	syncEvery = time.Second
	// lookEvery is how often to check for free space on the disk.
	lookEvery = time.Second
	// A reply larger than this is stored in parts, so that reading back takes little
	// memory at a time. An entry is never divided.
	partBytes   = 4 << 20
	partEntries = 8 << 10
)

// Store writes replies to disk until in is closed (nil) or ctx is done (its cause).
// While there is no room it does not receive from in (event Full, Disk), and checks
// again every second, as other processes may free space. Like a Queue it receives one
// reply too many, whose size it had to know. The first entry received may be the last
// one stored, and is then skipped; any other entry that is not after the previous one
// is an ErrOrder.
func (s *Spool) Store(ctx context.Context, in <-chan oplog.Reply) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("spool: store: %w", err)
	}
	defer s.leave()
	w := &writer{Spool: s}
	err := w.fresh()
	if err == nil {
		err = lost(w.storeLoop(ctx, in))
	}
	s.roomAgain(false)
	// A fault here after another error is reported by the next call.
	if fault := w.syncAll(); err == nil {
		err = fault
	}
	return err
}

// writer appends records.
type writer struct {
	*Spool
	// previous is the entry before the next one, null if there is none; repeats means
	// that it may be received once more.
	previous oplog.OpTime
	repeats  bool
	// pending was received, and is not wholly stored.
	pending *incoming
	buf     []byte
}

// incoming is a reply to be stored.
type incoming struct {
	reply oplog.Reply
	parts [][]oplog.Entry
	// size is the maximum size of all of it on disk, in bytes; whole means that it is
	// in one part.
	size  int64
	whole bool
	// admitted means that there was room for all of it.
	admitted bool
}

// fresh prepares for another stream of replies. An empty spool may start anywhere. Forget takes files off the list before it removes
// them, and puts them back if that fails, so fresh waits for it.
func (w *writer) fresh() error {
	w.removing.Lock()
	defer w.removing.Unlock()
	w.mu.Lock()
	empty := w.entries == 0
	if empty {
		w.last = oplog.OpTime{}
	}
	w.previous, w.repeats = w.last, !empty
	w.mu.Unlock()
	if !empty || w.file == nil {
		return nil
	}
	// A file without entries names the entry before it, which may be wrong now.
	path := w.file.Name()
	err := errors.Join(w.file.Close(), remove(path))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= w.current.size
	w.segments = nil
	w.file, w.current, w.unsynced = nil, nil, time.Time{}
	if err != nil {
		w.broken = fmt.Errorf("spool: remove the empty file %s: %w", path, err)
		return w.broken
	}
	return nil
}

func (w *writer) storeLoop(ctx context.Context, in <-chan oplog.Reply) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		room, err := w.flush()
		if err != nil {
			return err
		}
		from := in
		if !room {
			from = nil
		}
		next, err := w.syncDue()
		if err != nil {
			return err
		}
		if !room && (next == 0 || next > lookEvery) {
			next = lookEvery
		}
		var look <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			look = timer.C
		}
		select {
		case r, ok := <-from:
			if !ok {
				return nil
			}
			if err := w.take(r); err != nil {
				return err
			}
		case <-look:
		case <-w.forgot:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take makes a reply the pending one, if it has any new entries.
func (w *writer) take(r oplog.Reply) error {
	for i := range r.Entries {
		e := &r.Entries[i]
		if w.previous.IsNull() {
			if err := w.mayBegin(e.OpTime); err != nil {
				return err
			}
		}
		if w.repeats {
			w.repeats = false
			if e.OpTime.Equal(w.previous) {
				r.Entries = r.Entries[1:]
				return w.take(r)
			}
		}
		if !w.previous.IsNull() && !follows(e.OpTime, w.previous) {
			return notAfter(w.previous, e.OpTime)
		}
		if doc, err := cutDoc(e.Raw); err != nil || len(doc) != len(e.Raw) {
			return fmt.Errorf("spool: entry %s came without its bytes", e.OpTime)
		}
		w.previous = e.OpTime
	}
	if len(r.Entries) == 0 {
		return nil
	}
	n := &incoming{reply: r}
	begin, bytes := 0, 0
	for i := range r.Entries {
		if i > begin && (bytes+len(r.Entries[i].Raw) > partBytes || i-begin == partEntries) {
			n.part(r.Entries[begin:i], bytes)
			begin, bytes = i, 0
		}
		bytes += len(r.Entries[i].Raw)
	}
	n.part(r.Entries[begin:], bytes)
	n.size += int64(len(n.parts)) * preambleSize(w.cfg.ID) // each may need a new file
	n.whole = len(n.parts) == 1
	w.pending = n
	return nil
}

// mayBegin checks that the spool may start with an entry.
func (w *writer) mayBegin(first oplog.OpTime) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := w.want; want != nil && !first.Equal(*want) {
		return fmt.Errorf("spool: the first entry is %s, want %s: %w", first, *want, ErrOrder)
	}
	w.want = nil
	return nil
}

func (n *incoming) part(entries []oplog.Entry, bytes int) {
	n.parts = append(n.parts, entries)
	n.size += headSize + int64(bytes)
}

// flush stores the pending reply, as far as there is room, and reports whether there is
// room for more.
func (w *writer) flush() (room bool, err error) {
	why := ""
	if n := w.pending; n != nil {
		if why, err = w.lacks(n.size, !n.admitted); err != nil {
			return false, err
		}
		if why == "" {
			n.admitted = true
			if why, err = w.write(); err != nil {
				return false, err
			}
		}
	}
	if why == "" {
		if why, err = w.lacks(1, true); err != nil {
			return false, err
		}
	}
	if why != "" {
		return false, w.noteFull(why)
	}
	w.roomAgain(true)
	return true, nil
}

// bytesText returns a size as an operator gives it: in the largest unit of which it is a multiple.
func bytesText(n int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// lacks returns why there is no room for size bytes, "" if there is.
func (w *writer) lacks(size int64, limited bool) (why string, err error) {
	if limited && w.over(size) {
		return fmt.Sprintf("the limit of %s is reached", bytesText(w.cfg.Limit)), nil
	}
	free, err := w.disk.free(w.cfg.Dir)
	if err != nil {
		return "", err
	}
	if free-size < w.cfg.MinFree {
		return fmt.Sprintf("less than %s of the disk would be free", bytesText(w.cfg.MinFree)), nil
	}
	return "", nil
}

// Lacks returns why nothing can be stored at present, "" if something can be.
func (s *Spool) Lacks() (why string, err error) {
	w := &writer{Spool: s}
	return w.lacks(partBytes, true)
}

// over reports whether size bytes more exceed the limit. A reply that is larger than
// the limit passes alone, as otherwise it would never pass: once nothing else is
// stored, or only the file with the last entry, which is not removed, and all of it was
// sent.
func (w *writer) over(size int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	alone := w.entries == 0 ||
		w.reading && w.read.index == w.next && len(w.segments) == 1 && w.current == nil
	return !alone && w.bytes+size > w.cfg.Limit
}

// noteFull records that there is no room. The file that is being written is finished,
// so that it can be removed too.
func (w *writer) noteFull(why string) error {
	if err := w.finish(); err != nil {
		return err
	}
	w.mu.Lock()
	begins := w.full.IsZero()
	if begins {
		w.full = time.Now()
	}
	w.why = why
	w.tellWaiters()
	size := w.bytes
	w.mu.Unlock()
	if begins {
		free, err := w.disk.free(w.cfg.Dir)
		if err != nil {
			free = 0 // unknown
		}
		w.cfg.Observer.Log(slog.LevelWarn, "spool full, reading the oplog paused",
			slog.String(keyDir, w.cfg.Dir), slog.String(keyWhy, why), slog.Int64(keyBytes, size),
			slog.Int64(keyLimit, w.cfg.Limit), slog.Int64(keyFree, free))
	}
	return nil
}

// roomAgain records that there is room, and announces it.
func (s *Spool) roomAgain(announce bool) {
	s.mu.Lock()
	since := s.full
	s.full, s.why = time.Time{}, ""
	size := s.bytes
	s.mu.Unlock()
	if since.IsZero() {
		return
	}
	lasted := time.Since(since)
	s.metrics.full.Add(lasted.Seconds())
	if announce {
		s.cfg.Observer.Log(slog.LevelInfo, "spool has room again", slog.String(keyDir, s.cfg.Dir),
			slog.Duration(keyFor, lasted), slog.Int64(keyBytes, size), slog.Int64(keyLimit, s.cfg.Limit))
	}
}

// write stores the pending parts. It returns why, if there was no room.
func (w *writer) write() (why string, err error) {
	n := w.pending
	for len(n.parts) > 0 {
		if err := w.record(n, n.parts[0]); isFull(err) {
			return err.Error(), nil
		} else if err != nil {
			return "", err
		}
		n.parts = n.parts[1:]
	}
	w.pending = nil
	return "", nil
}

// record writes a record. If there is no room for all of it, it is cut off again.
func (w *writer) record(n *incoming, part []oplog.Entry) error {
	b := slices.Grow(w.buf[:0], headSize)[:headSize]
	for i := range part {
		b = append(b, part[i].Raw...)
	}
	w.buf = b
	if cap(w.buf) > 2*partBytes {
		w.buf = nil
	}
	g, err := w.segmentFor(int64(len(b)))
	if err != nil {
		return err
	}
	h := head{
		entries: uint32(len(part)), offset: g.size, synced: w.synced, received: n.reply.Received,
		first: part[0].OpTime, last: part[len(part)-1].OpTime,
	}
	h.encode(b, g.seed)
	if _, err := w.disk.write(w.file, b, g.size); err != nil {
		err = fmt.Errorf("spool: write %d bytes to %s: %w", len(b), g.path, err)
		if cut := w.file.Truncate(g.size); cut != nil {
			err = w.isBroken(errors.Join(err, cut))
		}
		return err
	}
	w.stored(g, &h, n)
	return nil
}

// isBroken records an error after which nothing is written any more. It does not count
// as lack of space.
func (w *writer) isBroken(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = fmt.Errorf("spool: the contents of the files on disk are unknown: %v", err) //nolint:errorlint // see above
	return w.broken
}

// stored counts a record. If all records before it were sent, and there is memory, its
// entries are sent as they were received.
func (w *writer) stored(g *segment, h *head, n *incoming) {
	w.mu.Lock()
	index := w.next
	g.add(h)
	g.size += h.size()
	w.bytes += h.size()
	w.entries += int64(h.entries)
	w.next++
	w.last, w.newest = h.last, h.received
	if w.unsynced.IsZero() {
		w.unsynced = time.Now()
	}
	if w.reading && w.read.index == index && n.whole && w.account.Admits(n.reply.Bytes, w.room) &&
		w.account.Stats().Replies < maxReplies {
		w.account.Add(n.reply)
		w.read = place{w.next, g.number, g.size}
	}
	w.tellWaiters()
	w.mu.Unlock()
	wake(w.woken)
}

// segmentFor returns the segment for a record of this size.
func (w *writer) segmentFor(size int64) (*segment, error) {
	if w.file != nil {
		if g := w.current; g.records == 0 || g.size+size <= w.cfg.SegmentBytes {
			return g, nil
		}
		if err := w.finish(); err != nil {
			return nil, err
		}
	}
	p := preamble{number: w.number, previous: w.last, made: time.Now().UnixNano(), id: w.cfg.ID}
	b := p.encode()
	path := filepath.Join(w.cfg.Dir, fileName(p.number))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: create a file: %w", err)
	}
	_, err = w.disk.write(f, b, 0)
	if err == nil {
		err = w.disk.sync(f)
	}
	if err == nil {
		err = syncDir(w.cfg.Dir, w.disk.sync)
	}
	if err != nil {
		err = fmt.Errorf("spool: write the preamble of %s: %w", path, err)
		if gone := errors.Join(f.Close(), remove(path)); gone != nil {
			err = w.isBroken(errors.Join(err, gone))
		}
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &segment{
		number: p.number, path: path, seed: p.sum, preamble: p.size(), size: p.size(),
		index: w.next, last: p.previous,
	}
	w.file, w.current, w.synced, w.unsynced = f, g, g.size, time.Time{}
	w.segments = append(w.segments, g)
	w.number++
	w.bytes += g.size
	return g, nil
}

// finish finishes the file that is being written.
func (w *writer) finish() error {
	if w.file == nil || w.current.records == 0 {
		return nil
	}
	if err := w.syncAll(); err != nil {
		return err
	}
	w.mu.Lock()
	f := w.file
	w.file, w.current = nil, nil
	w.mu.Unlock()
	if err := f.Close(); err != nil {
		return w.isBroken(err)
	}
	return nil
}

// syncDue syncs written data if that is due, and returns the time until it will be, 0
// for never.
func (w *writer) syncDue() (time.Duration, error) {
	if w.unsynced.IsZero() {
		return 0, nil
	}
	if left := syncEvery - time.Since(w.unsynced); left > 0 {
		return left, nil
	}
	return 0, w.syncAll()
}

// syncAll syncs written data.
func (w *writer) syncAll() error {
	if w.file == nil || w.unsynced.IsZero() || w.broken != nil {
		return nil
	}
	if err := w.disk.sync(w.file); err != nil {
		// A second sync may succeed although the first one lost data.
		return w.isBroken(fmt.Errorf("sync %s: %w", w.file.Name(), err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced, w.unsynced = w.current.size, time.Time{}
	return nil
}
