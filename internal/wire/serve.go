package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	// keepBuffer is the largest buffer for replies that a connection holds on to
	// between two of them, in bytes.
	keepBuffer = 1 << 20
	// copyLimit is the size of a body, in bytes, from which on it is written by
	// itself: another system call costs less than to copy it after its header.
	copyLimit = 64 << 10
)

// ErrHangup is the cause with which a handler's context ends when the client
// has closed the connection.
var ErrHangup = errors.New("the client closed the connection")

// Handler answers the messages of one connection.
type Handler interface {
	// Handle answers req. [Serve] calls it for one message after the other, in
	// the order of the connection, and never twice at a time. req and all in it
	// belong to the handler.
	//
	// ctx ends when Serve's does, with its cause, and with [ErrHangup] when the
	// client has gone. For the server a hang-up ends reads and waits, while a
	// write that has begun runs to its end, and so it should be here. A request
	// with MoreToCome, which expects no reply, is not touched by a hang-up at
	// all: a client may send it and close at once.
	Handle(ctx context.Context, req *Message) Response
}

// Response is a handler's response to a request.
type Response struct {
	// Body is the reply: valid BSON, not changed before the next call of Handle,
	// by when it has been sent. Errors of commands are replies too. It is
	// ignored if the request wants none.
	Body bson.Raw
	// More continues the stream if the request allows one (ExhaustAllowed): the
	// reply is sent with MoreToCome and Handle is called again as if the client
	// had asked again. If the request does not allow it, More means nothing.
	More bool
	// Next is the body of the request that More stands for, as an awaitable
	// hello needs it, whose next request has the topologyVersion of the last
	// reply. Nil repeats the request as it is, as getMore does.
	Next bson.Raw
	// Close closes the connection without a reply.
	Close bool
}

// Serve runs one connection until it ends. It owns conn from the start: conn is
// closed when Serve returns, and earlier when ctx ends. Goroutines that Serve
// started have ended by then; a handler that ignores its context keeps Serve
// from returning.
//
// It returns nil if the client hung up between two messages or a handler asked
// to close, the cause of ctx if that ended, a [*ProtocolError] for a malformed
// message, and else the connection's error. Messages before a malformed one are
// answered first.
func Serve(ctx context.Context, conn net.Conn, h Handler) error {
	alive, gone := context.WithCancelCause(ctx)
	s := &session{
		conn:    conn,
		handler: h,
		in:      make(chan inbound, 1),
		slot:    make(chan struct{}, 1),
		done:    make(chan struct{}),
	}
	var started sync.WaitGroup
	started.Go(func() { s.readLoop(gone) })
	started.Go(func() {
		select {
		case <-ctx.Done():
			_ = conn.Close() // Serve returns the cause of ctx
		case <-s.done:
		}
	})
	err := s.answerLoop(ctx, alive)
	close(s.done)
	_ = conn.Close() // nothing is left to be written
	started.Wait()
	gone(nil)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// session is one connection.
type session struct {
	conn    net.Conn
	handler Handler
	// in passes read messages to the answering side.
	in chan inbound
	// slot is taken while a message that was read waits to be handled. It
	// keeps the reader at one message ahead.
	slot chan struct{}
	// done is closed when answering has ended.
	done chan struct{}

	// The answering side's own.
	lastID int32
	buf    []byte
}

type inbound struct {
	msg *Message
	err error
}

// readLoop reads ahead until the stream ends. A malformed message waits for its
// turn; the end of the stream is made known at once.
func (s *session) readLoop(gone context.CancelCauseFunc) {
	r := NewReader(s.conn)
	for {
		var next inbound
		if err := r.wait(); err != nil {
			next.err = hangup(err)
		} else {
			select {
			case s.slot <- struct{}{}:
			case <-s.done:
				return
			}
			next.msg, next.err = r.ReadMessage()
		}
		if _, malformed := errors.AsType[*ProtocolError](next.err); next.err != nil && !malformed {
			gone(ErrHangup)
		}
		select {
		case s.in <- next:
		case <-s.done:
			return
		}
		if next.err != nil {
			return
		}
	}
}

// hangup brings the error of a stream that ended between two messages into the
// form that ReadMessage gives it.
func hangup(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("wire: wait for a message: %w", err)
}

// answerLoop handles messages until the stream ends or cannot be written to.
// alive ends with the client.
func (s *session) answerLoop(ctx, alive context.Context) error {
	for {
		var next inbound
		select {
		case next = <-s.in:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if errors.Is(next.err, io.EOF) {
			return nil
		}
		if next.err != nil {
			return next.err
		}
		<-s.slot
		if next.msg.Flags.Has(MoreToCome) {
			if s.handler.Handle(ctx, next.msg).Close {
				return nil
			}
			continue
		}
		if closed, err := s.answer(alive, next.msg); closed || err != nil {
			return err
		}
	}
}

// answer handles one request with all replies of its stream. It reports whether
// the handler asked to close the connection.
func (s *session) answer(ctx context.Context, req *Message) (closed bool, err error) {
	for {
		// Copied, because the handler may keep or change what it gets.
		flags, id, legacy := req.Flags, req.RequestID, req.Legacy
		again := *req
		res := s.handler.Handle(ctx, req)
		if res.Close {
			return true, nil
		}
		more := res.More && flags.Has(ExhaustAllowed)
		s.lastID++
		reply := Message{RequestID: s.lastID, ResponseTo: id, Body: res.Body, Legacy: legacy}
		reply.Flags = flags & ChecksumPresent
		if more {
			reply.Flags |= MoreToCome
		}
		if err := s.write(&reply); err != nil {
			return false, err
		}
		// The stream of a client that has gone ends, even if the handler and
		// the connection did not notice.
		if over := !more || ctx.Err() != nil; over {
			return false, nil
		}
		// On the server each reply of a stream answers the one before it.
		again.RequestID = reply.RequestID
		if res.Next != nil {
			again.Body = res.Next
		}
		req = &again
	}
}

// write sends a reply with a single write, a large one with two.
func (s *session) write(reply *Message) error {
	if len(reply.Body) >= copyLimit && !reply.Legacy && !reply.Flags.Has(ChecksumPresent) {
		return s.writeLarge(reply)
	}
	appendTo := AppendMessage
	if reply.Legacy {
		appendTo = AppendLegacyReply
	}
	buf, err := appendTo(s.buf[:0], reply)
	if err != nil {
		return err
	}
	if s.buf = buf; cap(buf) > keepBuffer {
		s.buf = nil
	}
	if _, err := s.conn.Write(buf); err != nil {
		return fmt.Errorf("wire: answer message %d: %w", reply.ResponseTo, err)
	}
	return nil
}

// writeLarge sends a reply without copying its body.
func (s *session) writeLarge(reply *Message) error {
	head, err := appendHead(s.buf[:0], reply)
	if err != nil {
		return err
	}
	s.buf = head
	for _, part := range [][]byte{head, reply.Body} {
		if _, err := s.conn.Write(part); err != nil {
			return fmt.Errorf("wire: answer message %d: %w", reply.ResponseTo, err)
		}
	}
	return nil
}
