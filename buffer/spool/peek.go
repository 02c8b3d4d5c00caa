package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/oplogrep/replicator/oplog"
)

// Peek returns the first and the last entry of the spool of that ID in a folder, false if
// there is none, or if it is empty. It takes no lock and changes nothing, so another process
// may use the spool meanwhile. It reads the headers in the first and the last files, and
// checks no more than these: Open may still find the spool damaged.
func Peek(dir, id string) (first, last oplog.OpTime, ok bool, err error) {
	list, err := listFiles(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return first, last, false, nil
	}
	for _, g := range list {
		if err == nil {
			ok, err = g.peek(id)
		}
		if err != nil || ok {
			first = g.first
			break
		}
	}
	for i := len(list) - 1; i >= 0 && ok && last.IsNull(); i-- {
		if _, err = list[i].peek(id); err != nil {
			break
		}
		last = list[i].last
	}
	if err != nil {
		return first, last, false, fmt.Errorf("spool: look into %s: %w", dir, err)
	}
	return first, last, ok && !last.IsNull(), nil
}

// peek counts the records of a file of the spool of that ID, and reports whether there are any.
func (g *segment) peek(id string) (bool, error) {
	p, size, err := readPreamble(g.path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		return false, nil
	case err != nil:
		return false, err
	case p.err != nil || p.id != id:
		return false, nil
	}
	g.records, g.first, g.last = 0, oplog.OpTime{}, oplog.OpTime{}
	f, err := os.Open(g.path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	var b [headSize]byte
	for at := p.size(); at+headSize <= size; {
		if _, err := f.ReadAt(b[:], at); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return false, err
		}
		h, err := parseHead(b[:], at, p.sum)
		if err != nil || at+h.size() > size {
			break // Open judges that.
		}
		g.add(&h)
		at += h.size()
	}
	return g.records > 0, nil
}
