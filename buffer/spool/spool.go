package spool

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

const (
	defaultLimit    = 64 << 30
	defaultMinFree  = 1 << 30
	defaultSegment  = 64 << 20
	minSegment      = 64 << 10
	defaultHeadroom = 64 << 20
	// maxReplies is how many replies may wait to be sent.
	maxReplies = 10_000
)

// Config says where a spool is, and how large it may become.
type Config struct {
	// Dir is the folder; it is created if it does not exist. Only one spool uses it at
	// a time (it has a lock file).
	Dir string
	// ID identifies the owner of the content: link, instance and number of the copy. A
	// folder with the files of another ID is cleared.
	ID string
	// Limit is the maximum size on disk, in bytes. Zero means 64 GiB. MinFree is how
	// many bytes of the disk stay free. Zero means 1 GiB.
	Limit, MinFree int64
	// Memory is the budget for entries read back and not released, in bytes, like
	// buffer.Config.Limit of a Queue. Zero means 256 MiB. 64 MiB of it, but at most
	// half, are reserved for the record being read.
	Memory int64

	// SegmentBytes is the size of a file. Zero means 64 MiB, but at most an eighth of
	// Limit: only whole files can be removed.
	SegmentBytes int64

	// Writer writes the files. Nil means with (*os.File).WriteAt.
	Writer Writer

	Observer event.Observer
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	if c.Limit == 0 {
		c.Limit = defaultLimit
	}
	if c.MinFree == 0 {
		c.MinFree = defaultMinFree
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = max(min(defaultSegment, c.Limit/8), minSegment)
	}
	if c.Memory == 0 {
		c.Memory = buffer.DefaultLimit
	}
	if c.Writer == nil {
		c.Writer = direct{}
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Dir == "" {
		faults = append(faults, errors.New("spool: no directory is given"))
	}
	if c.ID == "" || len(c.ID) > maxID {
		faults = append(faults, fmt.Errorf("spool: an ID of %d bytes: want 1 to %d", len(c.ID), maxID))
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"limit", c.Limit}, {"free space", c.MinFree}, {"memory", c.Memory}} {
		if n.value < 1 {
			faults = append(faults, fmt.Errorf("spool: %s of %d bytes: want 1 or more", n.name, n.value))
		}
	}
	return errors.Join(faults...)
}

// Writer writes to the files of a spool. A test has one that stands still, as a disk may.
type Writer interface {
	// WriteAt is the method of f.
	WriteAt(f *os.File, b []byte, at int64) (int, error)
}

// direct implements Writer.
type direct struct{}

// WriteAt implements Writer.
func (direct) WriteAt(f *os.File, b []byte, at int64) (int, error) { return f.WriteAt(b, at) }

// opener is os.OpenFile.
type opener func(path string, flag int, mode os.FileMode) (*os.File, error)

// disk is the system calls that may fail for lack of space, or on a disk that is read-only.
type disk struct {
	open  opener
	write func(f *os.File, b []byte, at int64) (int, error)
	sync  func(f *os.File) error
	free  func(dir string) (int64, error)
	// remove removes a file, if it is there.
	remove func(path string) error
}

// Spool is a queue on disk, whose ends run independently: Store and Read.
type Spool struct {
	cfg     Config
	disk    disk
	lock    *os.File
	metrics *metrics
	// woken wakes Read after a Release and when a record was stored; forgot wakes Store
	// after a Forget. Their capacity is one.
	woken, forgot chan struct{}
	// closed is closed by Close.
	closed chan struct{}
	// removing serializes removing files. It is locked before mu.
	removing sync.Mutex

	mu sync.Mutex
	// The rest is guarded by mu.

	running, isClosed bool
	// broken is the error after which nothing can be written: the content of the disk
	// is unknown.
	broken error
	// segments are the files, in order, numbered without gaps.
	segments []*segment
	// current is the last segment if it is being written, nil otherwise; file is its
	// open file. Only Store changes them, and reads them without mu.
	current *segment
	file    *os.File
	// synced is up to where file is synced; unsynced is since when there is unsynced
	// data, zero if there is none.
	synced   int64
	unsynced time.Time
	// number is the number of the next file, next that of the next record.
	number uint64
	next   int64
	// last is the last entry ever stored, null if there is none.
	last           oplog.OpTime
	bytes, entries int64
	// newest is when the last record was received, zero before the first one.
	newest time.Time
	// full is since when there has been no room, zero while there is, and why.
	full time.Time
	why  string
	// waiters wait for entries.
	waiters []waiter

	account buffer.Account
	// room is the maximum memory of entries that were read back, in bytes.
	room int64
	// start is the start of the next Read.
	start *start
	// want is the entry that has to come first into the empty spool, nil for any.
	want *oplog.OpTime
	// reading means that read is in use: the place of the next record to send.
	reading bool
	read    place
	// waiting is since when there has been no memory to read further, zero while there
	// is.
	waiting time.Time
}

// segment is one file.
type segment struct {
	number uint64
	path   string
	// seed is the checksum of its preamble, whose size in bytes is preamble.
	seed     uint32
	preamble int64
	size     int64
	records  int64
	entries  int64
	// index is the number of its first record.
	index       int64
	first, last oplog.OpTime
	// newest is when its last record was received.
	newest time.Time
}

// end is the number of the record after the segment.
func (g *segment) end() int64 { return g.index + g.records }

// place is where a record begins: its number, its file and the offset there. It may
// also be the end of the previous file.
type place struct {
	index  int64
	number uint64
	offset int64
}

// start is the argument of Start, with its record.
type start struct {
	from oplog.OpTime
	// at is the record with that entry, nil while the spool is empty.
	at *place
}

// Close closes the spool and keeps its files. It must not be called while Store or Read
// runs.
func (s *Spool) Close() error { return s.close(false) }

// Remove closes the spool and removes its files. It must not be called while Store or
// Read runs.
func (s *Spool) Remove() error { return s.close(true) }

func (s *Spool) close(removes bool) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	s.mu.Lock()
	if s.running || s.reading {
		s.mu.Unlock()
		return fmt.Errorf("spool: close %s: %w", s.cfg.Dir, errRunning)
	}
	if s.isClosed {
		s.mu.Unlock()
		return nil
	}
	s.isClosed = true
	close(s.closed)
	s.mu.Unlock()

	s.metrics.leave()
	var faults []error
	if s.file != nil {
		if !removes && s.broken == nil {
			faults = append(faults, s.disk.sync(s.file))
		}
		faults = append(faults, s.file.Close())
	}
	if removes {
		// The lock file is removed while it is locked: takeLock detects this.
		faults = append(faults, clearFiles(s.cfg.Dir), remove(filepath.Join(s.cfg.Dir, heardName)), remove(filepath.Join(s.cfg.Dir, lockName)))
	}
	if s.lock != nil {
		faults = append(faults, s.lock.Close())
	}
	if removes {
		_ = os.Remove(s.cfg.Dir) // fails if other files are in it
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("spool: close %s: %w", s.cfg.Dir, err)
	}
	return nil
}

// Bounds returns the first and the last entry in the spool, false if it is empty. To
// continue, reading of the source begins at last; Store skips that entry.
func (s *Spool) Bounds() (first, last oplog.OpTime, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bounds()
}

// bounds is Bounds. mu is held.
func (s *Spool) bounds() (first, last oplog.OpTime, ok bool) {
	if s.entries == 0 {
		return first, last, false
	}
	for _, g := range s.segments {
		if g.records > 0 {
			return g.first, s.last, true
		}
	}
	panic("spool: invariant: entries without a file")
}

// SetMemory changes Config.Memory. With less, nothing is read back until enough
// of the memory in use was released.
func (s *Spool) SetMemory(bytes int64) {
	s.mu.Lock()
	s.room = roomOf(bytes)
	s.mu.Unlock()
	wake(s.woken)
}

// roomOf is the part of Config.Memory for entries that were read back, in bytes.
func roomOf(memory int64) int64 { return memory - min(defaultHeadroom, memory/2) }

// Release releases memory of entries that were sent, like buffer.Queue.
func (s *Spool) Release(bytes int64) {
	s.mu.Lock()
	s.account.Release(bytes)
	s.mu.Unlock()
	wake(s.woken)
}

// Stats returns the state of memory, like that of a Queue.
func (s *Spool) Stats() buffer.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.account.Stats()
	st.Waiting, st.Limit = !s.waiting.IsZero(), s.room
	return st
}

// Size returns how many bytes are on disk. It does not touch the disk.
func (s *Spool) Size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// DiskStats is the state of the spool on disk.
type DiskStats struct {
	// Bytes are on disk, of Limit. Free is the number of free bytes of the disk, -1 if
	// unknown.
	Bytes, Limit, Free int64
	Entries            int64
	First, Last        oplog.OpTime
	// Full means that there is no room, for the reason Why.
	Full bool
	Why  string
	// Newest is when the last entry was received, the zero time if that is not known.
	Newest time.Time
}

// Disk returns the state of the spool on disk.
func (s *Spool) Disk() DiskStats {
	free, err := s.disk.free(s.cfg.Dir)
	if err != nil {
		free = -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, last, _ := s.bounds()
	return DiskStats{
		Bytes: s.bytes, Limit: s.cfg.Limit, Free: free, Entries: s.entries, First: first, Last: last,
		Full: !s.full.IsZero(), Why: s.why, Newest: s.newest,
	}
}

// Forget removes files that have only entries before the given one, which is the
// FetchFrom of a majority-committed checkpoint of the target. It may be called while
// Store and Read run. Entries that Read has not sent stay, as does the file that is
// being written.
func (s *Spool) Forget(before oplog.OpTime) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	gone, err := s.takeBefore(before)
	if err != nil {
		return err
	}
	// The oldest first, so that the rest has no gap if this is interrupted.
	for len(gone) > 0 && err == nil {
		if err = s.disk.remove(gone[0].path); err == nil {
			s.mu.Lock()
			s.bytes -= gone[0].size
			s.mu.Unlock()
			gone = gone[1:]
		}
	}
	if err != nil {
		s.mu.Lock()
		s.segments = append(gone, s.segments...)
		for _, g := range gone {
			s.entries += g.entries
		}
		s.mu.Unlock()
		err = fmt.Errorf("spool: remove the entries before %s: %w", before, err)
	}
	wake(s.forgot)
	return err
}

// takeBefore removes from the list the segments that have only entries before the given
// one.
func (s *Spool) takeBefore(before oplog.OpTime) ([]*segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return nil, errClosed
	}
	keep := int64(math.MaxInt64)
	switch {
	case s.reading:
		keep = s.read.index
	case s.start != nil && s.start.at != nil:
		keep = s.start.at.index
	}
	n := 0
	for ; n < len(s.segments); n++ {
		g := s.segments[n]
		if g == s.current || g.end() > keep || g.records > 0 && !g.last.Before(before) {
			break
		}
		s.entries -= g.entries
	}
	gone := append([]*segment(nil), s.segments[:n]...)
	s.segments = append([]*segment(nil), s.segments[n:]...)
	return gone, nil
}

// enter marks that Store runs.
func (s *Spool) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isClosed:
		return errClosed
	case s.running:
		return errRunning
	case s.broken != nil:
		return s.broken
	}
	s.running = true
	return nil
}

func (s *Spool) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // Store will wake and check anyway.
	}
}
