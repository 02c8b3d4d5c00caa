package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	readBuffer = 16 << 10
	// firstGrowth is the memory allocated by the header's length alone, in
	// bytes. Beyond it memory grows with the bytes received.
	firstGrowth = 1 << 20
)

// Reader cuts a stream into messages. It is not safe for concurrent use.
type Reader struct {
	buf    *bufio.Reader
	header [headerSize]byte
}

// NewReader returns a Reader of the messages in r. It reads ahead.
func NewReader(r io.Reader) *Reader {
	return &Reader{buf: bufio.NewReaderSize(r, readBuffer)}
}

// ReadMessage reads a request. It returns io.EOF if the stream ends before it,
// a [*ProtocolError] if it is malformed, and else the stream's error.
func (r *Reader) ReadMessage() (*Message, error) {
	op, frame, err := r.readFrame()
	if err != nil {
		return nil, err
	}
	switch op {
	case opMsg:
		return parseMsg(frame)
	case opQuery:
		return parseQuery(frame)
	}
	return nil, unknownOpcode(op)
}

// ReadReply reads a reply, with the same errors as ReadMessage.
func (r *Reader) ReadReply() (*Message, error) {
	op, frame, err := r.readFrame()
	if err != nil {
		return nil, err
	}
	switch op {
	case opMsg:
		return parseMsg(frame)
	case opReply:
		return parseReply(frame)
	}
	return nil, unknownOpcode(op)
}

// wait returns when a byte of the next message has come, or the stream's error.
func (r *Reader) wait() error {
	_, err := r.buf.Peek(1)
	return err
}

func unknownOpcode(op int32) error {
	return &ProtocolError{Where: "header", Offset: 12, What: "unknown opcode " + strconv.Itoa(int(op))}
}

// readFrame reads one message into memory of its own.
func (r *Reader) readFrame() (op int32, frame []byte, err error) {
	if _, err := io.ReadFull(r.buf, r.header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, nil, io.EOF
		}
		return 0, nil, fmt.Errorf("wire: read a header: %w", err)
	}
	size := int32(binary.LittleEndian.Uint32(r.header[:]))
	if size < headerSize || size > MaxMessageSize {
		return 0, nil, &ProtocolError{Where: "header", What: fmt.Sprintf(
			"a length of %d, it may be %d to %d", size, headerSize, MaxMessageSize)}
	}
	frame = make([]byte, min(int(size), firstGrowth))
	for at := copy(frame, r.header[:]); ; {
		n, err := io.ReadFull(r.buf, frame[at:])
		at += n
		if err != nil && at < int(size) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, fmt.Errorf("wire: read a message, %d of %d bytes: %w", at, size, err)
		}
		if at == int(size) {
			return int32(binary.LittleEndian.Uint32(frame[12:])), frame, nil
		}
		grown := make([]byte, min(int(size), 2*len(frame)))
		copy(grown, frame)
		frame = grown
	}
}

// newMessage returns a Message with the fields of the header.
func newMessage(frame []byte) *Message {
	return &Message{
		RequestID:  int32(binary.LittleEndian.Uint32(frame[4:])),
		ResponseTo: int32(binary.LittleEndian.Uint32(frame[8:])),
	}
}

// cursor walks over one message.
type cursor struct {
	frame []byte
	pos   int
	// end is where the part that is being read ends.
	end int
}

func (c *cursor) fault(where, what string) error {
	return &ProtocolError{Where: where, Offset: c.pos, What: what}
}

func (c *cursor) uint32(where string) (uint32, error) {
	if c.end-c.pos < 4 {
		return 0, c.fault(where, "the message ends in a number")
	}
	c.pos += 4
	return binary.LittleEndian.Uint32(c.frame[c.pos-4:]), nil
}

func (c *cursor) cstring(where string) (string, error) {
	n := bytes.IndexByte(c.frame[c.pos:c.end], 0)
	if n < 0 {
		return "", c.fault(where, "a name without an end")
	}
	c.pos += n + 1
	return string(c.frame[c.pos-n-1 : c.pos-1]), nil
}

// size returns the length of the document that starts here.
func (c *cursor) size(where string) (int, error) {
	if c.end-c.pos < rawbson.MinSize {
		return 0, c.fault(where, fmt.Sprintf("a document takes at least %d bytes, there are %d", rawbson.MinSize, c.end-c.pos))
	}
	n := int(int32(binary.LittleEndian.Uint32(c.frame[c.pos:])))
	switch {
	case n < rawbson.MinSize || n > c.end-c.pos:
		return 0, c.fault(where, fmt.Sprintf("a document with a length of %d with %d bytes left", n, c.end-c.pos))
	case n > MaxDocumentSize:
		return 0, c.fault(where, fmt.Sprintf("a document of %d bytes, the limit is %d", n, MaxDocumentSize))
	}
	return n, nil
}

// document steps over a document and checks it.
func (c *cursor) document(where string) (bson.Raw, error) {
	n, err := c.size(where)
	if err != nil {
		return nil, err
	}
	doc := c.frame[c.pos : c.pos+n : c.pos+n]
	if err := rawbson.Validate(doc); err != nil {
		return nil, &ProtocolError{Where: where, Offset: c.pos, Err: err}
	}
	c.pos += n
	return doc, nil
}

// parseMsg takes an OP_MSG apart, by the rules of the server's parser.
func parseMsg(frame []byte) (*Message, error) {
	m := newMessage(frame)
	c := &cursor{frame: frame, pos: headerSize, end: len(frame)}
	bits, err := c.uint32("OP_MSG flags")
	if err != nil {
		return nil, err
	}
	m.Flags = Flags(bits)
	if unknown := m.Flags & requiredFlags &^ (ChecksumPresent | MoreToCome); unknown != 0 {
		c.pos -= 4
		return nil, c.fault("OP_MSG flags", fmt.Sprintf("unknown required bits %#x", uint32(unknown)))
	}
	if m.Flags.Has(ChecksumPresent) {
		if err := c.checksum(); err != nil {
			return nil, err
		}
	}
	for c.pos < c.end {
		if err := c.section(m); err != nil {
			return nil, err
		}
	}
	if m.Body == nil {
		return nil, c.fault("OP_MSG", "no body")
	}
	for _, s := range m.Sequences {
		if onPath(m.Body, s.Name) {
			return nil, c.fault("OP_MSG", fmt.Sprintf("%q is a document sequence and a field of the body", s.Name))
		}
	}
	return m, nil
}

// checksum checks the CRC-32C over all before it and takes it off the end.
func (c *cursor) checksum() error {
	if c.end-c.pos < checksumSize {
		return c.fault("OP_MSG checksum", "the message ends before it")
	}
	c.end -= checksumSize
	got, want := binary.LittleEndian.Uint32(c.frame[c.end:]), crc32.Checksum(c.frame[:c.end], castagnoli)
	if got != want {
		return &ProtocolError{
			Where: "OP_MSG checksum", Offset: c.end,
			What: fmt.Sprintf("%#08x, the message has %#08x", got, want),
		}
	}
	return nil
}

func (c *cursor) section(m *Message) error {
	kind := c.frame[c.pos]
	switch kind {
	case kindBody:
		if m.Body != nil {
			return c.fault("OP_MSG", "a second body")
		}
		c.pos++
		body, err := c.document("OP_MSG body")
		m.Body = body
		return err
	case kindSequence:
		if len(m.Sequences) == MaxSequences {
			return c.fault("OP_MSG", fmt.Sprintf("more than %d document sequences", MaxSequences))
		}
		c.pos++
		s, err := c.sequence()
		if err != nil {
			return err
		}
		if _, twice := m.Sequence(s.Name); twice {
			return c.fault("OP_MSG", fmt.Sprintf("a second document sequence %q", s.Name))
		}
		m.Sequences = append(m.Sequences, s)
		return nil
	}
	return c.fault("OP_MSG", "unknown section kind "+strconv.Itoa(int(kind)))
}

// sequence steps over a document sequence: its length, its name, documents.
func (c *cursor) sequence() (Sequence, error) {
	const where = "OP_MSG document sequence"
	start := c.pos
	size, err := c.uint32(where)
	if err != nil {
		return Sequence{}, err
	}
	if n := int(int32(size)); n < 4 || n > c.end-start {
		c.pos = start
		return Sequence{}, c.fault(where, fmt.Sprintf("a length of %d with %d bytes left", n, c.end-start))
	}
	part := &cursor{frame: c.frame, pos: c.pos, end: start + int(size)}
	c.pos = part.end
	s := Sequence{}
	if s.Name, err = part.cstring(where); err != nil {
		return Sequence{}, err
	}
	// Counted first: growing the list while reading costs more.
	count := 0
	for p := *part; p.pos < p.end; count++ {
		n, err := p.size(where)
		if err != nil {
			return Sequence{}, err
		}
		p.pos += n
	}
	s.Docs = make([]bson.Raw, 0, count)
	for part.pos < part.end {
		doc, err := part.document(where)
		if err != nil {
			return Sequence{}, err
		}
		s.Docs = append(s.Docs, doc)
	}
	return s, nil
}

// onPath reports whether body has the field name, which may be a dotted path. An
// array on the way counts as there, as the server counts it.
func onPath(body []byte, name string) bool {
	if _, ok := rawbson.Lookup(body, name); ok {
		return true
	}
	head, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return false
	}
	e, ok := rawbson.Lookup(body, head)
	if !ok {
		return false
	}
	if _, array := e.Array(); array {
		return true
	}
	doc, ok := e.Document()
	return ok && onPath(doc, rest)
}
