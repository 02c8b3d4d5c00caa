package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// budget is the memory that held parts may take. It is shared by an Assembler
// and the Transactions that it gave out, which live in other goroutines.
type budget struct {
	limit int64
	used  atomic.Int64
}

// store keeps the parts of one chain in order: first those in the file, then
// those in memory. A part is the o of its entry.
type store struct {
	budget *budget
	dir    string
	// start is the chain's first entry, for errors.
	start oplog.OpTime

	mem      []bson.Raw
	memBytes int64
	file     *spillFile
}

// keep takes a copy of a part.
func (s *store) keep(part bson.Raw) {
	s.mem = append(s.mem, append(make(bson.Raw, 0, len(part)), part...))
	s.memBytes += int64(len(part))
	s.budget.used.Add(int64(len(part)))
}

// spill moves what is in memory to the file. After an error some parts are in
// both places, and the store must not be read.
func (s *store) spill() error {
	for _, part := range s.mem {
		if err := s.write(part); err != nil {
			return err
		}
	}
	s.forget()
	return nil
}

// write adds a part to the file, behind which nothing may be in memory.
func (s *store) write(part bson.Raw) error {
	if s.file == nil {
		f, err := createSpillFile(s.dir)
		if err != nil {
			return s.fault(s.dir, true, err)
		}
		s.file = f
	}
	if err := s.file.append(part); err != nil {
		return s.fault(s.file.Name(), true, err)
	}
	return nil
}

func (s *store) fault(path string, writing bool, err error) error {
	return &SpillError{Path: path, OpTime: s.start, Err: err, Writing: writing}
}

// spilled returns how many bytes the file has.
func (s *store) spilled() int64 {
	if s.file == nil {
		return 0
	}
	return s.file.size
}

// parts calls yield for each part, until it returns false.
func (s *store) parts(yield func(bson.Raw) bool) (more bool, err error) {
	for at := int64(0); at < s.spilled(); {
		part, err := s.file.read(at)
		if err != nil {
			return false, s.fault(s.file.Name(), false, err)
		}
		if !yield(part) {
			return false, nil
		}
		at += headerSize + int64(len(part))
	}
	for _, part := range s.mem {
		if !yield(part) {
			return false, nil
		}
	}
	return true, nil
}

func (s *store) forget() {
	if s.budget != nil {
		s.budget.used.Add(-s.memBytes)
	}
	s.mem, s.memBytes = nil, 0
}

// release gives back memory and file. It may be called again.
func (s *store) release() error {
	s.forget()
	f := s.file
	s.file = nil
	if f == nil {
		return nil
	}
	if err := f.close(); err != nil {
		return fmt.Errorf("remove the spilled transaction %s: %w", f.Name(), err)
	}
	return nil
}

// headerSize is what precedes each part in a spill file, in bytes: its length
// and the CRC-32C of length and part, both little-endian.
const headerSize = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// spillFile keeps parts one behind the other. It is read at offsets, so any
// number of readers do not disturb each other.
type spillFile struct {
	*os.File
	// size is where the next part goes, in bytes.
	size int64
	// named is set where the name could not be removed at once.
	named bool
}

func createSpillFile(dir string) (*spillFile, error) {
	f, err := os.CreateTemp(dir, "replicator-txn-*.spill")
	if err != nil {
		return nil, err
	}
	// Without a name the file vanishes with the process, however that ends.
	// Windows refuses to remove an open file: there close does it.
	err = os.Remove(f.Name())
	return &spillFile{File: f, named: err != nil}, nil
}

func (f *spillFile) append(part bson.Raw) error {
	var header [headerSize]byte
	binary.LittleEndian.PutUint32(header[:], uint32(len(part)))
	binary.LittleEndian.PutUint32(header[4:], checksum(header[:4], part))
	if _, err := f.WriteAt(header[:], f.size); err != nil {
		return err
	}
	if _, err := f.WriteAt(part, f.size+headerSize); err != nil {
		return err
	}
	f.size += headerSize + int64(len(part))
	return nil
}

// read returns the part at an offset, in memory of its own.
func (f *spillFile) read(at int64) (bson.Raw, error) {
	var header [headerSize]byte
	if err := f.readFull(header[:], at); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(header[:]))
	if n > f.size-at-headerSize {
		return nil, fmt.Errorf("%w: a part of %d bytes at byte %d of %d", ErrSpillCorrupt, n, at, f.size)
	}
	part := make(bson.Raw, n)
	if err := f.readFull(part, at+headerSize); err != nil {
		return nil, err
	}
	if checksum(header[:4], part) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, fmt.Errorf("%w: the checksum of the part at byte %d differs", ErrSpillCorrupt, at)
	}
	return part, nil
}

func (f *spillFile) readFull(b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ends at byte %d of %d", ErrSpillCorrupt, at+int64(n), f.size)
	default:
		return err
	}
}

func (f *spillFile) close() error {
	err := f.Close()
	if f.named {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func checksum(length []byte, part bson.Raw) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, part)
}
