package corpus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const logFile = "oplog.bson"

// reader reads concatenated BSON documents and knows where they are.
type reader struct {
	file   string
	f      *os.File
	buf    *bufio.Reader
	size   int64
	offset int64 // of the next document
	start  int64 // of the last document
}

func newReader(file string) (*reader, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fileError(file, plain(err))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a file")
	}
	if err != nil {
		return nil, errors.Join(fileError(file, plain(err)), f.Close())
	}
	return &reader{file: file, f: f, buf: bufio.NewReaderSize(f, 1<<20), size: info.Size()}, nil
}

// next returns the next document in a buffer of its own, checked throughout, or
// io.EOF after the last one. Other errors are FileErrors.
func (r *reader) next() (bson.Raw, error) {
	r.start = r.offset
	left := r.size - r.offset
	head, err := r.buf.Peek(4)
	switch {
	case left <= 0:
		return nil, io.EOF
	case len(head) < 4:
		return nil, r.corrupt(0, fmt.Errorf("a document cut off after %d bytes", len(head)))
	case err != nil:
		return nil, r.corrupt(0, err)
	}
	// The length is checked against the file before anything is allocated.
	switch n := int64(int32(binary.LittleEndian.Uint32(head))); {
	case n < rawbson.MinSize:
		return nil, r.corrupt(0, fmt.Errorf("a document with a length of %d", n))
	case n > left:
		return nil, r.corrupt(0, fmt.Errorf("a document of %d bytes cut off after %d", n, left))
	default:
		doc := make(bson.Raw, n)
		if _, err := io.ReadFull(r.buf, doc); err != nil {
			return nil, r.corrupt(0, err)
		}
		if err := rawbson.Validate(doc); err != nil {
			if c, ok := errors.AsType[*rawbson.CorruptError](err); ok {
				return doc, r.corrupt(int64(c.Offset), errors.New(c.What))
			}
			return doc, r.corrupt(0, err)
		}
		r.offset += n
		return doc, nil
	}
}

// corrupt returns a fault at a distance, in bytes, from the last document's
// start.
func (r *reader) corrupt(at int64, err error) error {
	return &FileError{File: r.file, Offset: r.start + at, Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

func (r *reader) close() error { return r.f.Close() }

// Oplog yields the entries in order, each in a buffer of its own. It ends with
// the first fault, a [*FileError]: bytes that are not BSON, an entry that cannot
// be parsed or is out of order, a log that is not the part that meta.json says.
func (s *Scenario) Oplog() iter.Seq2[*oplog.Entry, error] {
	return func(yield func(*oplog.Entry, error) bool) {
		for at, err := range s.placed() {
			if !yield(at.entry, err) {
				return
			}
		}
	}
}

// placed is an entry and where it begins in its file, in bytes. The entry is nil
// where there was a fault instead.
type placed struct {
	entry  *oplog.Entry
	offset int64
}

func (s *Scenario) placed() iter.Seq2[placed, error] {
	return func(yield func(placed, error) bool) {
		if s.Err != nil {
			yield(placed{}, s.Err)
			return
		}
		r, err := newReader(s.path(logFile))
		if err != nil {
			yield(placed{}, err)
			return
		}
		defer r.close() //nolint:errcheck // it was only read
		log := logCheck{meta: &s.Meta, r: r}
		for {
			e, err := log.next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(placed{e, r.start}, err) || err != nil {
				return
			}
		}
	}
}

// logCheck reads entries and checks that they are the log that was promised.
type logCheck struct {
	meta *Meta
	r    *reader
	last oplog.OpTime
	n    int
}

func (l *logCheck) next() (*oplog.Entry, error) {
	raw, err := l.r.next()
	if errors.Is(err, io.EOF) {
		if err := l.end(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	if f, ok := errors.AsType[*FileError](err); ok {
		f.After = l.last
		return nil, f
	}
	e, err := oplog.ParseEntry(raw)
	if err != nil {
		return nil, l.fault(parsedOpTime(err), err)
	}
	switch {
	case l.n == 0 && oplog.CompareTimestamps(e.OpTime.TS, l.meta.first.TS) <= 0:
		return nil, l.fault(e.OpTime, fmt.Errorf("%w: %s says that the log begins after %s", ErrMismatch, metaFile, l.meta.First))
	case l.n > 0 && (oplog.CompareTimestamps(e.OpTime.TS, l.last.TS) <= 0 || e.OpTime.Before(l.last)):
		return nil, l.fault(e.OpTime, ErrOutOfOrder)
	}
	l.n++
	l.last = e.OpTime
	return &e, nil
}

func (l *logCheck) fault(at oplog.OpTime, err error) error {
	return &FileError{File: l.r.file, Offset: l.r.start, OpTime: at, After: l.last, Err: err}
}

func (l *logCheck) end() error {
	switch {
	case l.n != l.meta.Entries:
		return l.fault(oplog.OpTime{}, fmt.Errorf("%w: there are %d entries, %s says %d", ErrMismatch, l.n, metaFile, l.meta.Entries))
	case !l.last.Equal(l.meta.last):
		return l.fault(oplog.OpTime{}, fmt.Errorf("%w: the log ends there, %s says at %s", ErrMismatch, metaFile, l.meta.Last))
	}
	return nil
}

func parsedOpTime(err error) oplog.OpTime {
	if e, ok := errors.AsType[*oplog.EntryError](err); ok {
		return e.OpTime
	}
	return oplog.OpTime{}
}
