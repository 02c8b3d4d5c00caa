package mdb

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"

	"pgregory.net/rapid"
)

// arrived is a connection over which all that is read has come already, in pieces.
type arrived struct {
	net.Conn
	pieces [][]byte
	reads  int
}

func (c *arrived) Read(p []byte) (int, error) {
	c.reads++
	if len(c.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

func ahead(c net.Conn) *conn { return &conn{Conn: c, ahead: bufio.NewReaderSize(c, readAhead)} }

// TestReadAhead: what is read is what has come, however it came and is read.
func TestReadAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 3*readAhead), 1, 8)
		under := &arrived{}
		var all []byte
		for i, size := range sizes.Draw(t, "pieces") {
			piece := bytes.Repeat([]byte{byte(i + 1)}, size)
			under.pieces = append(under.pieces, piece)
			all = append(all, piece...)
		}
		c := ahead(under)
		var got []byte
		for _, size := range sizes.Draw(t, "reads") {
			p := make([]byte, min(size, len(all)-len(got)))
			if _, err := io.ReadFull(c, p); err != nil {
				t.Fatal(err)
			}
			got = append(got, p...)
		}
		rest, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(append(got, rest...), all) {
			t.Fatalf("%d bytes came of %d, %v", len(got)+len(rest), len(all), err)
		}
	})
}

// TestReads: replies that have come together take one system call together, and a
// large one is not read by the buffer's size.
func TestReads(t *testing.T) {
	for _, tt := range []struct {
		name        string
		size, count int
		want        int
	}{
		{"one small reply", 200, 1, 1},
		{"ten small replies", 200, 10, 1},
		{"a large one", 16 << 20, 1, 2},
	} {
		under := &arrived{pieces: [][]byte{make([]byte, tt.size*tt.count)}}
		c := ahead(under)
		for range tt.count {
			for _, part := range []int{4, tt.size - 4} { // as the driver does
				if _, err := io.ReadFull(c, make([]byte, part)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if under.reads != tt.want {
			t.Errorf("%s: %d reads, want %d", tt.name, under.reads, tt.want)
		}
	}
}
