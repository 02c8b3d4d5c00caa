package txn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// segmentBytes is the size, in bytes, at which a segment takes no more parts.
// Smaller segments need more open files; larger ones keep more disk space for one
// transaction that stays open.
const segmentBytes = 64 << 20

// headerSize is the size of the header of each part in a segment, in bytes: the
// part's length and the CRC-32C of length and part, both little-endian.
const headerSize = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segments are the files of an Assembler and of the Transactions that it returned,
// which are used by other goroutines. All chains write to the same file until it is
// full: with a file per chain, thousands of small open transactions would exhaust
// the open files.
type segments struct {
	dir   string
	limit int64 // segmentBytes, less in tests

	mu sync.Mutex // guards current, and users of each segment
	// Invariant: a segment with no users is closed, and is not current.
	current *segment // nil where the next part needs a new one
}

// segment is a file of consecutive parts. Only the Assembler writes it; reads are
// at offsets, so that readers may run concurrently.
type segment struct {
	*os.File
	// size is the offset of the next part, in bytes. Only the Assembler accesses it.
	size int64
	// users is the number of stores with parts in it.
	users int
	// named is set if the name could not be removed at once.
	named bool
}

// use returns the segment for the next part. It adds a user, unless it is the
// segment that the caller used last.
func (s *segments) use(last *segment) (*segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.size >= s.limit {
		f, err := createSegment(s.dir)
		if err != nil {
			return nil, err
		}
		s.current = f
	}
	if s.current != last {
		s.current.users++
	}
	return s.current, nil
}

// leave removes a user. The last one closes the file.
func (s *segments) leave(f *segment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	if f.users > 0 {
		return nil
	}
	if s.current == f {
		s.current = nil
	}
	return f.close()
}

func createSegment(dir string) (*segment, error) {
	f, err := os.CreateTemp(dir, "replicator-txn-*.spill")
	if err != nil {
		return nil, err
	}
	// Without a name the file vanishes with the process, even after a crash. Windows
	// refuses to remove an open file: there close removes it.
	err = os.Remove(f.Name())
	return &segment{File: f, named: err != nil}, nil
}

func (f *segment) append(part bson.Raw) error {
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

// read returns the part at an offset, in newly allocated memory. The part must not
// extend past end.
func (f *segment) read(at, end int64) (bson.Raw, error) {
	var header [headerSize]byte
	if err := f.readFull(header[:], at, end); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(header[:]))
	if n > end-at-headerSize {
		return nil, fmt.Errorf("%w: a part of %d bytes at byte %d, where they end at byte %d", ErrSpillCorrupt, n, at, end)
	}
	part := make(bson.Raw, n)
	if err := f.readFull(part, at+headerSize, end); err != nil {
		return nil, err
	}
	if checksum(header[:4], part) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, fmt.Errorf("%w: the checksum of the part at byte %d differs", ErrSpillCorrupt, at)
	}
	return part, nil
}

func (f *segment) readFull(b []byte, at, end int64) error {
	n, err := f.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ends at byte %d, with parts up to byte %d", ErrSpillCorrupt, at+int64(n), end)
	default:
		return err
	}
}

func (f *segment) close() error {
	err := f.Close()
	if f.named {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func checksum(length []byte, part bson.Raw) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, part)
}
