package ends

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
)

const (
	// nullBuffer is the size of a connection's reads: small enough for a
	// processor's cache, large enough to make system calls rare.
	nullBuffer = 128 << 10
	// prefix is the length of the header, the flags and the section's kind, which
	// precede the body of a message that begins with it.
	prefix = 16 + 4 + 1

	opMsg          = 2013
	moreToCome     = 1 << 1
	requiredFlags  = 1<<16 - 1
	maxMessageSize = 48_000_000
)

// nullConn is a connection to a null server.
type nullConn struct {
	server *nullServer
	conn   net.Conn
	// in buffers the connection; reader reads whole messages from it.
	in     *bufio.Reader
	reader *wire.Reader
	// backend is the connection to the backend, nil until it is needed.
	backend *wire.Client
	// out are replies that are not sent yet.
	out []byte
	id  int32
	// body and msg are memory for an answer.
	body []byte
	msg  wire.Message
	// large is memory for a statement that is larger than in.
	large []byte
}

func newNullConn(s *nullServer, conn net.Conn) *nullConn {
	c := &nullConn{server: s, conn: conn, in: bufio.NewReaderSize(conn, nullBuffer)}
	// bufio.NewReaderSize returns a bufio.Reader that is large enough as it is, so
	// no bytes are lost between the two.
	c.reader = wire.NewReader(c.in)
	return c
}

func (c *nullConn) close() {
	_ = c.conn.Close()
	if c.backend != nil {
		_ = c.backend.Close()
	}
}

// serve answers message after message until the connection ends.
func (c *nullConn) serve(ctx context.Context) error {
	for {
		// Pipelined requests are answered together. If only a part of the next message
		// has arrived this is safe too: its sender does not wait for an answer before
		// it sends the rest.
		if c.in.Buffered() == 0 || len(c.out) > nullBuffer/2 {
			if err := c.flush(); err != nil {
				return err
			}
		}
		// The check is made when a message has arrived, not before waiting for
		// it.
		if _, err := c.in.Peek(1); err != nil {
			return err
		}
		if c.server.armed.Load() {
			taken, err := c.tryAcknowledge()
			if err != nil {
				return err
			}
			if taken {
				continue
			}
		}
		msg, err := c.reader.ReadMessage()
		if err != nil {
			return err
		}
		if err := c.handle(ctx, msg); err != nil {
			return err
		}
	}
}

// errMalformed is the error of a malformed message.
var errMalformed = errors.New("malformed message")

// tryAcknowledge acknowledges the next message after parsing only its command and the
// number of its statements. It returns false, having read nothing, if the message is
// not a write or does not begin with its body.
func (c *nullConn) tryAcknowledge() (taken bool, err error) {
	head, err := c.in.Peek(prefix + 4)
	if err != nil {
		return false, err
	}
	size := int(binary.LittleEndian.Uint32(head))
	flags := binary.LittleEndian.Uint32(head[16:])
	bodySize := int(binary.LittleEndian.Uint32(head[prefix:]))
	switch {
	case size < prefix+rawbson.MinSize || size > maxMessageSize, binary.LittleEndian.Uint32(head[12:]) != opMsg,
		flags&requiredFlags&^moreToCome != 0, head[20] != 0,
		bodySize < rawbson.MinSize || bodySize > size-prefix || bodySize > nullBuffer-prefix:
		return false, nil // wire.Reader returns the error, if there is one
	}
	id := int32(binary.LittleEndian.Uint32(head[4:]))
	if head, err = c.in.Peek(prefix + bodySize); err != nil {
		return false, err
	}
	w, ok := writeOf(head[prefix:], c.server.calibrated)
	if !ok || w.kept() || w.own && w.name == "find" || c.server.calibrated && w.meta() {
		return false, nil
	}
	if _, err := c.in.Discard(prefix + bodySize); err != nil {
		return false, err
	}
	if err := c.countSections(&w, size-prefix-bodySize); err != nil {
		return false, err
	}
	c.server.count(w)
	if flags&moreToCome != 0 {
		return true, nil
	}
	c.body = w.appendReply(c.body[:0])
	c.msg = wire.Message{ResponseTo: id, Body: c.body}
	return true, c.answer(&c.msg)
}

// countSections reads the document sequences after the body, the statements of w.
func (c *nullConn) countSections(w *write, left int) error {
	for left > 0 {
		head, err := c.in.Peek(1 + 4)
		if err != nil {
			return err
		}
		size := int(binary.LittleEndian.Uint32(head[1:]))
		if head[0] != 1 || size < 4+2 || size > left-1 {
			return fmt.Errorf("%w: a section of kind %d with %d bytes, there are %d", errMalformed, head[0], size, left)
		}
		if _, err := c.in.Discard(1 + 4); err != nil {
			return err
		}
		left -= 1 + size
		name, err := c.in.ReadSlice(0)
		if err != nil {
			return err
		}
		if err := c.countDocuments(w, size-4-len(name)); err != nil {
			return err
		}
	}
	return nil
}

// countDocuments reads statements of w, of left bytes in total.
func (c *nullConn) countDocuments(w *write, left int) error {
	for left > 0 {
		head, err := c.in.Peek(4)
		if err != nil {
			return err
		}
		size := int(binary.LittleEndian.Uint32(head))
		if size < rawbson.MinSize || size > left {
			return fmt.Errorf("%w: a document of %d bytes, there are %d", errMalformed, size, left)
		}
		left -= size
		if w.name != "insert" && size > nullBuffer { // a long list of _ids, for example
			c.large = slices.Grow(c.large[:0], size)[:size]
			if _, err := io.ReadFull(c.in, c.large); err != nil {
				return err
			}
			w.add(c.large)
			continue
		}
		var statement bson.Raw
		if w.name != "insert" {
			if statement, err = c.in.Peek(size); err != nil {
				return err
			}
		}
		w.add(statement)
		if _, err := c.in.Discard(size); err != nil {
			return err
		}
	}
	if left < 0 {
		return fmt.Errorf("%w: a section ends within its name", errMalformed)
	}
	return nil
}

// handle answers a message that has been read completely.
func (c *nullConn) handle(ctx context.Context, msg *wire.Message) error {
	body, err := c.reply(ctx, msg)
	if err != nil || msg.Flags.Has(wire.MoreToCome) {
		return err
	}
	return c.answer(&wire.Message{ResponseTo: msg.RequestID, Body: body, Legacy: msg.Legacy, Flags: msg.Flags & wire.ChecksumPresent})
}

func (c *nullConn) reply(ctx context.Context, msg *wire.Message) (bson.Raw, error) {
	it := rawbson.NewIter(msg.Body)
	it.Next()
	switch it.Name() {
	case nullCommand:
		return c.server.control(ctx, msg.Body), nil
	case "hello", "isMaster", "ismaster":
		reply, err := c.ask(ctx, msg)
		if err != nil {
			return nil, err
		}
		return c.server.ownHello(reply), nil
	}
	if c.server.armed.Load() {
		if w, ok := writeOf(msg.Body, c.server.calibrated); ok && (!c.server.calibrated || !w.meta()) {
			return c.acknowledge(ctx, msg, w)
		} else if ok {
			return c.ask(ctx, msg)
		}
		return c.askAlone(ctx, msg)
	}
	return c.ask(ctx, msg)
}

// askAlone sends a command to the backend outside of its transaction, whose start the
// backend has not seen.
func (c *nullConn) askAlone(ctx context.Context, msg *wire.Message) (bson.Raw, error) {
	if _, inTransaction := rawbson.Lookup(msg.Body, "autocommit"); !inTransaction {
		return c.ask(ctx, msg)
	}
	alone := *msg
	alone.Body = outsideTransaction(msg.Body)
	return c.ask(ctx, &alone)
}

// outsideTransaction returns a command without its transaction's fields.
func outsideTransaction(body bson.Raw) bson.Raw {
	var fields []byte
	for it := rawbson.NewIter(body); it.Next(); {
		switch it.Name() {
		case "lsid", "txnNumber", "autocommit", "startTransaction", "readConcern":
		default:
			fields = appendElem(fields, &it.Elem)
		}
	}
	return bsoncore.BuildDocument(nil, fields)
}

// acknowledge answers the commands that an armed server answers itself, except
// finds in MetaDB: that has no more than it had before.
func (c *nullConn) acknowledge(ctx context.Context, msg *wire.Message, w write) (bson.Raw, error) {
	for _, s := range msg.Sequences {
		for _, doc := range s.Docs {
			w.add(doc)
		}
	}
	isFind := w.name == "find"
	switch {
	case w.kept() && isFind:
		c.server.count(w)
		return c.server.lanes.find(msg.Body), nil
	case w.kept():
		w.statements = c.server.lanes.update(msg)
	case w.own && isFind:
		return c.askAlone(ctx, msg)
	}
	c.server.count(w)
	return w.appendReply(nil), nil
}

// answer appends a reply to those that wait to be sent.
func (c *nullConn) answer(reply *wire.Message) (err error) {
	c.id++
	reply.RequestID = c.id
	appendTo := wire.AppendMessage
	if reply.Legacy {
		appendTo = wire.AppendLegacyReply
	}
	c.out, err = appendTo(c.out, reply)
	return err
}

// flush sends the replies that are ready.
func (c *nullConn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	if cap(c.out) > nullBuffer {
		c.out = nil
	}
	c.out = c.out[:0]
	return err
}

// ask sends a command to the backend.
func (c *nullConn) ask(ctx context.Context, msg *wire.Message) (bson.Raw, error) {
	if c.backend == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.server.member)
		if err != nil {
			return nil, err
		}
		c.backend = wire.NewClient(conn)
	}
	noReply := msg.Flags.Has(wire.MoreToCome)
	_, err := c.backend.Send(ctx, wire.Request{Body: msg.Body, Sequences: msg.Sequences, NoReply: noReply})
	if err != nil || noReply {
		return nil, err
	}
	reply, err := c.backend.Receive(ctx)
	if errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return reply.Body, nil
}

// write is a command that an armed null server acknowledges.
type write struct {
	name string
	// collection is a view of the command.
	collection []byte
	// statements counts the documents that it writes, nanoseconds what that costs a
	// real server.
	statements  int
	nanoseconds int64
	calibrated  bool // nanoseconds are counted
	own         bool // it is on MetaDB
}

// add counts a statement, nil for an insert, which is not looked into.
func (w *write) add(statement bson.Raw) {
	if !w.calibrated {
		w.statements += max(1, listed(statement))
		return
	}
	cost, documents := costOf(w.name, statement)
	w.statements += documents
	w.nanoseconds += cost
}

// meta reports whether it concerns the metadata, or ends a transaction.
func (w *write) meta() bool { return w.own || w.name == "commitTransaction" }

// kept reports whether it concerns documents that even an armed server stores.
func (w *write) kept() bool {
	return w.own && string(w.collection) == lanesCollection && (w.name == "update" || w.name == "find")
}

// writeOf parses a command's body; it returns false if the command is not one
// to acknowledge. Statements outside the body are not counted.
func writeOf(body bson.Raw, calibrated bool) (w write, ok bool) {
	w.calibrated = calibrated
	it := rawbson.NewIter(body)
	if !it.Next() {
		return write{}, false
	}
	list := ""
	switch it.Name() {
	case "insert":
		w.name, list = "insert", "documents"
	case "update":
		w.name, list = "update", "updates"
	case "delete":
		w.name, list = "delete", "deletes"
	case "find":
		w.name = "find"
	case "commitTransaction", "abortTransaction":
		w.name = "commitTransaction"
	default:
		return write{}, false
	}
	if name, ok := it.Text(); ok {
		w.collection = it.Value[4 : 4+len(name)]
	}
	for it.Next() {
		switch {
		case list != "" && it.Is(list):
			docs, ok := it.Array()
			if !ok {
				return write{}, false
			}
			for each := rawbson.NewIter(docs); each.Next(); {
				w.add(each.Value)
			}
		case it.Is("$db"):
			db, _ := it.Text()
			w.own = db == MetaDB
		}
	}
	return w, it.Err() == nil
}

// appendReply appends the acknowledgement: every document was found and
// changed.
func (w *write) appendReply(dst []byte) []byte {
	if w.name == "find" {
		return append(dst, foundReply("nothing.here", nil)...)
	}
	i, dst := bsoncore.AppendDocumentStart(dst)
	if w.name != "commitTransaction" {
		dst = bsoncore.AppendInt32Element(dst, "n", int32(w.statements))
	}
	if w.name == "update" {
		dst = bsoncore.AppendInt32Element(dst, "nModified", int32(w.statements))
	}
	dst = append(bsoncore.AppendDoubleElement(dst, "ok", 1), 0)
	return bsoncore.UpdateLength(dst, i, int32(len(dst))-i)
}

func (s *nullServer) count(w write) {
	s.commands.Add(1)
	if w.own {
		return
	}
	s.statements.Add(int64(w.statements))
	if s.calibrated {
		s.nanoseconds.Add(w.nanoseconds)
		Work(w.nanoseconds - int64(w.statements)*costOwn)
	}
}

// control carries out a nullCommand.
func (s *nullServer) control(ctx context.Context, cmd bson.Raw) bson.Raw {
	if e, ok := rawbson.Lookup(cmd, "arm"); ok {
		if err := s.lanes.load(ctx, s.backend); err != nil {
			body := bsoncore.AppendStringElement(nil, "errmsg", err.Error())
			body = bsoncore.AppendInt32Element(body, "code", int32(servererr.OperationFailed))
			return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(body, "ok", 0))
		}
		s.armed.Store(e.Truth())
		s.commands.Store(0)
		s.statements.Store(0)
		s.nanoseconds.Store(0)
	}
	body := bsoncore.AppendBooleanElement(nil, "armed", s.armed.Load())
	body = bsoncore.AppendInt64Element(body, "commands", s.commands.Load())
	body = bsoncore.AppendInt64Element(body, "statements", s.statements.Load())
	body = bsoncore.AppendInt64Element(body, "nanoseconds", s.nanoseconds.Load())
	return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(body, "ok", 1))
}

// ownHello replaces the backend's address with the server's own. It drops
// topologyVersion, so that clients do not await its change.
func (s *nullServer) ownHello(reply bson.Raw) bson.Raw {
	var body []byte
	for it := rawbson.NewIter(reply); it.Next(); {
		switch {
		case it.Is("topologyVersion"):
		case it.Is("hosts"):
			list := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "0", s.address))
			body = bsoncore.AppendArrayElement(body, "hosts", list)
		case it.Is("primary"), it.Is("me"):
			body = bsoncore.AppendStringElement(body, it.Name(), s.address)
		default:
			body = appendElem(body, &it.Elem)
		}
	}
	return bsoncore.BuildDocument(nil, body)
}
