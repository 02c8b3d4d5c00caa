package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// logFileError is a file of entries that cannot be read any further.
type logFileError struct {
	file   string
	offset int64 // of the fault, -1 for the file as a whole
	err    error
}

func (e *logFileError) Error() string {
	if e.offset < 0 {
		return fmt.Sprintf("read %s: %v", e.file, e.err)
	}
	return fmt.Sprintf("read %s at byte %d: %v", e.file, e.offset, e.err)
}

func (e *logFileError) Unwrap() error { return e.err }

// readLogFile calls each with the documents of a file, which it may keep.
func readLogFile(ctx context.Context, file string, each func(bson.Raw) error) error {
	f, err := os.Open(file)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		return &logFileError{file, -1, err}
	}
	defer f.Close() //nolint:errcheck // it was only read
	in := bufio.NewReaderSize(f, 1<<20)
	for offset := int64(0); ctx.Err() == nil; {
		doc, err := readDocument(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if fault, ok := errors.AsType[*rawbson.CorruptError](err); ok {
			return &logFileError{file, offset + int64(fault.Offset), err}
		}
		if err != nil {
			return &logFileError{file, offset, err}
		}
		if err := each(doc); err != nil {
			return err
		}
		offset += int64(len(doc))
	}
	return fmt.Errorf("read %s: %w", file, context.Cause(ctx))
}

// maxEntry is larger than an entry that a server writes, 16 MiB and some.
const maxEntry = 64 << 20

// readDocument reads one document, checked throughout, or io.EOF.
func readDocument(in *bufio.Reader) (bson.Raw, error) {
	head, err := in.Peek(4)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, io.EOF
	case len(head) < 4 && errors.Is(err, io.EOF):
		return nil, fmt.Errorf("a document is cut off after %d bytes", len(head))
	case len(head) < 4:
		return nil, err
	}
	size := int64(int32(binary.LittleEndian.Uint32(head)))
	if size < rawbson.MinSize || size > maxEntry {
		return nil, fmt.Errorf("not BSON: a document with a length of %d", size)
	}
	doc := make(bson.Raw, size)
	if n, err := io.ReadFull(in, doc); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("a document of %d bytes is cut off after %d", size, n)
		}
		return nil, err
	}
	if err := rawbson.Validate(doc); err != nil {
		return nil, fmt.Errorf("not BSON: %w", err)
	}
	return doc, nil
}
