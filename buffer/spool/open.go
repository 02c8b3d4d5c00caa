package spool

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

const (
	lockName = "lock"
	suffix   = ".spool"
	digits   = 12
)

func fileName(number uint64) string { return fmt.Sprintf("%0*d%s", digits, number, suffix) }

// Open opens a spool, or creates it. It reads and checks all of its files: a last file
// that ends within a record, or whose last records have a wrong checksum, is cut there
// (event Cut); damage anywhere else is a *DamagedError. [Clear] removes files that Open
// cannot use. On a disk that became read-only, the spool can be read, and Store fails.
func Open(cfg Config) (*Spool, error) {
	return open(cfg, disk{open: os.OpenFile, sync: (*os.File).Sync, free: freeBytes})
}

func open(cfg Config, d disk) (*Spool, error) {
	cfg.setDefaults()
	if d.write == nil {
		d.write = cfg.Writer.WriteAt
	}
	if d.remove == nil {
		d.remove = remove
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	lock, err := takeFolder(cfg.Dir, d.open)
	if err != nil {
		return nil, fmt.Errorf("spool: open %s: %w", cfg.Dir, err)
	}
	s := &Spool{
		cfg: cfg, room: roomOf(cfg.Memory), disk: d, lock: lock,
		woken: make(chan struct{}, 1), forgot: make(chan struct{}, 1), closed: make(chan struct{}),
		number: 1,
	}
	if err := s.recover(); err != nil {
		_ = lock.Close()
		if _, ok := errors.AsType[*DamagedError](err); ok {
			return nil, err
		}
		return nil, fmt.Errorf("spool: open %s: %w", cfg.Dir, err)
	}
	s.metrics = newMetrics(cfg.Registry, s)
	if first, last, ok := s.bounds(); ok {
		cfg.Observer.Log(slog.LevelInfo, "spool found on disk", slog.String(keyDir, cfg.Dir), slog.Int64(keyBytes, s.bytes),
			slog.Int64(keyEntries, s.entries), slog.String(keyFirst, first.String()), slog.String(keyLast, last.String()))
	}
	return s, nil
}

// Found reports whether a folder has files of a spool, of whatever ID. It creates nothing.
func Found(dir string) (bool, error) {
	list, err := listFiles(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("spool: look into %s: %w", dir, err)
	}
	return len(list) > 0, nil
}

// Covers reports whether the files of a folder may be those of a spool that has an entry, and
// more after it. It reads the first preamble and the last file only, and creates nothing. Open
// checks all of it.
func Covers(dir string, from oplog.OpTime) (bool, error) {
	list, err := listFiles(dir)
	if err != nil || len(list) == 0 {
		return false, err
	}
	first, _, err := readPreamble(list[0].path)
	if err != nil {
		return false, err
	}
	if first.err == nil && !first.previous.IsNull() && !from.After(first.previous) {
		return false, nil
	}
	g := list[len(list)-1]
	last, size, err := readPreamble(g.path)
	if err != nil || last.err != nil {
		return true, err // Open knows what to do about that.
	}
	g.preamble, g.seed, g.size, g.last = last.size(), last.sum, size, last.previous
	if _, _, err = g.scan(last.previous); err != nil {
		return true, nil //nolint:nilerr // the same
	}
	return from.Before(g.last), nil
}

// Probe returns why the folder of a spool cannot be written to, nil if it can be.
func Probe(dir string) error {
	path := filepath.Join(dir, "probe")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.Write(make([]byte, 4096))
		err = errors.Join(err, f.Sync(), f.Close(), os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("spool: write to %s: %w", dir, err)
	}
	return nil
}

// Clear removes the files of a spool that is not open, whatever they contain, and the
// folder if nothing else is in it.
func Clear(dir string) error {
	lock, err := takeFolder(dir, os.OpenFile)
	if err == nil {
		err = errors.Join(clearFiles(dir), remove(filepath.Join(dir, lockName)), lock.Close())
		_ = os.Remove(dir) // fails if other files are in it
	}
	if err != nil {
		return fmt.Errorf("spool: clear %s: %w", dir, err)
	}
	return nil
}

// takeFolder creates the folder and locks it. Another process, or another spool of this
// one, may be removing it, or one of its parents, concurrently.
func takeFolder(dir string, open opener) (*os.File, error) {
	for try := 1; ; try++ {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			var lock *os.File
			if lock, err = takeLock(filepath.Join(dir, lockName), open); err == nil {
				return lock, nil
			}
		}
		// MkdirAll returns ErrExist if the folder is created and removed concurrently.
		if try == maxTakes || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
}

// maxTakes is how often takeFolder retries if the folder is removed.
const maxTakes = 100

// listFiles returns the segments of a folder, in order, with number and path.
func listFiles(dir string) ([]*segment, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []*segment
	for _, n := range names {
		stem, ok := strings.CutSuffix(n.Name(), suffix)
		number, err := strconv.ParseUint(stem, 10, 64)
		if !ok || err != nil || fileName(number) != n.Name() {
			continue
		}
		list = append(list, &segment{number: number, path: filepath.Join(dir, n.Name())})
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	return list, nil
}

// clearFiles removes all segments, the oldest first.
func clearFiles(dir string) error {
	list, err := listFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, g := range list {
		if err := remove(g.path); err != nil {
			return err
		}
	}
	return syncDir(dir, (*os.File).Sync)
}

// syncDir syncs a folder's list of files.
func syncDir(dir string, sync func(*os.File) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(sync(d), d.Close())
}

// recover loads the existing files.
func (s *Spool) recover() error {
	list, err := listFiles(s.cfg.Dir)
	if err != nil {
		return err
	}
	if list, err = s.openPreambles(list); err != nil {
		return err
	}
	for i, g := range list {
		if i > 0 && g.number != list[i-1].number+1 {
			return &DamagedError{g.path, 0, fmt.Errorf("the file before it is missing: %s", fileName(g.number-1))}
		}
		if err := s.takeIn(g, i == len(list)-1); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	s.number = last.number + 1
	if s.file, err = s.disk.open(last.path, os.O_RDWR, 0); isReadOnly(err) {
		// The files can be read.
		s.file, s.broken = nil, err
		return nil
	}
	if err != nil {
		return err
	}
	// The data that was read may not be synced.
	if err := s.disk.sync(s.file); err != nil {
		_ = s.file.Close()
		return err
	}
	s.current, s.synced = last, last.size
	return nil
}

// openPreambles reads the preambles of the files. It removes the files of another
// spool, and a last one that is incomplete.
func (s *Spool) openPreambles(list []*segment) ([]*segment, error) {
	total := int64(0)
	for i, g := range list {
		p, size, err := readPreamble(g.path)
		if err != nil {
			return nil, err
		}
		total += size
		g.size = size
		g.preamble, g.seed = p.size(), p.sum
		if p.err != nil {
			// The file was synced, with its preamble, before anything else was written
			// to it.
			torn := errors.Is(p.err, errShort) || size <= preambleSize(s.cfg.ID)
			if !torn || i < len(list)-1 {
				return nil, &DamagedError{g.path, 0, p.err}
			}
			if err := os.Remove(g.path); err != nil {
				return nil, err
			}
			s.logCut(g.path, 0, size, 0, p.err)
			return list[:i], nil
		}
		if p.id != s.cfg.ID {
			return nil, s.removeOther(p.id, total, list[i+1:])
		}
		if p.number != g.number {
			return nil, &DamagedError{g.path, 0, fmt.Errorf("its preamble says that it is file %s", fileName(p.number))}
		}
		// takeIn compares it with the entry before it.
		g.last = p.previous
	}
	return list, nil
}

// removeOther removes the files of another spool: those that were read, of so many bytes, and the rest.
func (s *Spool) removeOther(id string, bytes int64, rest []*segment) error {
	for _, g := range rest {
		if info, err := os.Stat(g.path); err == nil {
			bytes += info.Size()
		}
	}
	if err := clearFiles(s.cfg.Dir); err != nil {
		return err
	}
	s.cfg.Observer.Log(slog.LevelInfo, "files of another spool removed", slog.String(keyDir, s.cfg.Dir),
		slog.String(keyWas, id), slog.String(keyID, s.cfg.ID), slog.Int64(keyBytes, bytes))
	return nil
}

// foundPreamble is a preamble, or the reason why there is none.
type foundPreamble struct {
	preamble
	err error
}

func readPreamble(path string) (p foundPreamble, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return p, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return p, 0, err
	}
	b := make([]byte, min(info.Size(), preambleSize("")+maxID))
	if _, err := io.ReadFull(f, b); err != nil {
		return p, 0, err
	}
	p.preamble, p.err = parsePreamble(b)
	return p, info.Size(), nil
}

// takeIn checks the records of a file, of which only number, path, preamble, size and,
// as last, the entry before it are known.
func (s *Spool) takeIn(g *segment, isLast bool) error {
	if len(s.segments) > 0 && g.last != s.last {
		return &DamagedError{g.path, 0, fmt.Errorf("it continues after entry %s, but the file before it ends with %s", g.last, s.last)}
	}
	s.last = g.last
	g.index = s.next
	at, torn, err := g.scan(s.last)
	if err == nil && torn != nil {
		err = &DamagedError{g.path, at, torn}
		if isLast {
			err = s.cut(g, at, torn)
		}
	}
	if err != nil {
		return err
	}
	g.size = at
	if g.records > 0 {
		s.last, s.newest = g.last, g.newest
	}
	s.segments = append(s.segments, g)
	s.next += g.records
	s.entries += g.entries
	s.bytes += g.size
	return nil
}

// scan reads all records and returns where they end: at the end of the file, or where
// one is torn or damaged, and how.
func (g *segment) scan(before oplog.OpTime) (at int64, torn, err error) {
	f, err := os.Open(g.path)
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Seek(g.preamble, io.SeekStart); err != nil {
		return 0, nil, err
	}
	in := bufio.NewReaderSize(f, int(min(max(g.size, headSize), 1<<20)))
	var buf []byte
	for at = g.preamble; at < g.size; {
		if g.size-at < headSize {
			return at, errTorn, nil
		}
		b, err := in.Peek(headSize)
		if err != nil {
			return at, nil, err
		}
		h, err := parseHead(b, at, g.seed)
		if err != nil {
			return at, err, nil
		}
		if at+h.size() > g.size {
			return at, errTorn, nil
		}
		buf = slices.Grow(buf[:0], int(h.size()))[:h.size()]
		if _, err := io.ReadFull(in, buf); err != nil {
			return at, nil, err
		}
		if err := h.check(buf[headSize:], g.seed); errors.Is(err, errSum) {
			return at, err, nil
		} else if err != nil {
			return at, nil, &DamagedError{g.path, at, err}
		}
		if !before.IsNull() && !follows(h.first, before) {
			return at, nil, &DamagedError{g.path, at, notAfter(before, h.first)}
		}
		before = h.last
		g.add(&h)
		at += h.size()
	}
	return at, nil, nil
}

// add adds a record to the counts.
func (g *segment) add(h *head) {
	if g.records == 0 {
		g.first = h.first
	}
	g.records++
	g.entries += int64(h.entries)
	g.last, g.newest = h.last, h.received
}

// cut cuts the last file where a record is torn, unless later records prove that it had
// been synced.
func (s *Spool) cut(g *segment, at int64, why error) (err error) {
	f, err := s.disk.open(g.path, os.O_RDWR, 0)
	readOnly := isReadOnly(err)
	if readOnly {
		f, err = s.disk.open(g.path, os.O_RDONLY, 0)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	rest := make([]byte, g.size-at)
	if _, err := f.ReadAt(rest, at); err != nil {
		return err
	}
	var entries int64
	for i := 0; ; i += len(recordMagic) {
		n := bytes.Index(rest[i:], []byte(recordMagic))
		if n < 0 || len(rest)-i-n < headSize {
			break
		}
		i += n
		h, err := parseHead(rest[i:], at+int64(i), g.seed)
		switch {
		case errors.Is(err, errOffset) || err == nil && h.synced > at:
			// A crash neither moves a record nor tears synced data.
			return &DamagedError{g.path, at, why}
		case err != nil:
			continue
		}
		entries += int64(h.entries)
	}
	if readOnly {
		return nil // nothing is written after it
	}
	if err := f.Truncate(at); err != nil {
		return err
	}
	s.logCut(g.path, at, int64(len(rest)), entries, why)
	return nil
}

// logCut logs that the end of a file was cut off at an offset, where 0 is all of it. It
// is fetched again. entries counts those whose head can be read.
func (s *Spool) logCut(path string, offset, size, entries int64, why error) {
	s.cfg.Observer.Log(slog.LevelWarn, "unfinished end of the spool cut off", slog.String(keyFile, path), slog.Int64(keyOffset, offset),
		slog.Int64(keyBytes, size), slog.Int64(keyEntries, entries), slog.String(keyWhy, why.Error()))
}
