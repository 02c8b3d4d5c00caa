package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// errSalvaged is why nothing is stored into a spool that was opened by Salvage.
var errSalvaged = errors.New("the spool is only read")

// Damage says where the readable part of the files ends before their end.
type Damage struct {
	// File and Offset are where, in bytes.
	File   string
	Offset int64
	// Bytes are there from there on, in this file and in those after it, and cannot be read.
	Bytes int64
	Why   error
}

// Salvage opens the files on disk for reading, for a caller that cannot get the entries elsewhere.
// It neither changes nor removes a file, and reads the records up to the first damage or torn end.
// It returns where they end, nil if all can be read. With lock, it returns ErrInUse while another
// spool uses the folder; without, files may be removed while they are read. A folder that does not
// exist, or contains the files of another ID, is read as empty.
func Salvage(cfg Config, lock bool) (*Spool, *Damage, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, nil, err
	}
	s := &Spool{
		cfg: cfg, room: roomOf(cfg.Memory), disk: disk{open: os.OpenFile, write: (*os.File).WriteAt, sync: (*os.File).Sync, free: freeBytes},
		woken: make(chan struct{}, 1), forgot: make(chan struct{}, 1), closed: make(chan struct{}),
		broken: errSalvaged,
	}
	there, err := Found(cfg.Dir)
	path := filepath.Join(cfg.Dir, lockName)
	if err == nil && lock {
		// A spool that has stored nothing yet may be about to.
		if _, absent := os.Stat(path); there || absent == nil {
			s.lock, err = takeLock(path, os.OpenFile)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("spool: open %s: %w", cfg.Dir, err)
	}
	cut, err := s.salvage()
	if err != nil {
		if s.lock != nil {
			_ = s.lock.Close()
		}
		return nil, nil, fmt.Errorf("spool: open %s: %w", cfg.Dir, err)
	}
	s.metrics = newMetrics(cfg.Registry, s)
	return s, cut, nil
}

// salvage takes in the files up to the first damage.
func (s *Spool) salvage() (*Damage, error) {
	list, err := listFiles(s.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for i, g := range list {
		p, size, err := readPreamble(g.path)
		if err != nil {
			return cutAt(list[i:], 0, err), nil
		}
		if p.err == nil && p.id != s.cfg.ID {
			return nil, nil // of another link, or of another copy
		}
		why := p.err
		switch {
		case why != nil:
		case p.number != g.number:
			why = fmt.Errorf("its preamble says that it is file %s", fileName(p.number))
		case i > 0 && g.number != list[i-1].number+1:
			why = fmt.Errorf("the file before it is missing: %s", fileName(g.number-1))
		case i > 0 && p.previous != s.last:
			why = fmt.Errorf("it continues after entry %s, but the file before it ends with %s", p.previous, s.last)
		}
		if why != nil {
			return cutAt(list[i:], 0, why), nil
		}
		g.preamble, g.seed, g.size, g.last, g.index = p.size(), p.sum, size, p.previous, s.next
		at, torn, err := g.scan(p.previous)
		if why = torn; why == nil {
			why = err
		}
		s.keep(g, max(at, g.preamble))
		if why != nil {
			return cutAt(list[i:], at, why), nil
		}
	}
	return nil, nil
}

// keep takes in a file up to an offset.
func (s *Spool) keep(g *segment, size int64) {
	g.size = size
	if g.records > 0 || s.last.IsNull() {
		s.last, s.newest = g.last, g.newest
	}
	s.segments = append(s.segments, g)
	s.next += g.records
	s.entries += g.entries
	s.bytes += g.size
}

// cutAt returns where the first of the files cannot be read any further.
func cutAt(list []*segment, at int64, why error) *Damage {
	c := &Damage{File: list[0].path, Offset: at, Why: why, Bytes: -at}
	for _, g := range list {
		if info, err := os.Stat(g.path); err == nil {
			c.Bytes += info.Size()
		}
	}
	return c
}
