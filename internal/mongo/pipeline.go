package mongo

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Pipeliner is a Caller that need not wait for the answer to one command before it
// sends the next.
type Pipeliner interface {
	Caller
	// CallAll sends commands over one connection, to one server, which carries them
	// out in order, and calls each with the replies, in order, of those that were
	// carried out. It ends at the first one that was not, and returns its error as
	// Call does, or at the first error of each, and returns that. Those after it
	// may or may not have been carried out. A reply is valid until each returns.
	CallAll(ctx context.Context, cmds []Command, each func(i int, reply bson.Raw) error) error
}

// CallAll runs commands inside of the transaction, in order, and calls each with
// the reply to each of them. If the session's Caller is a Pipeliner a command does
// not wait for the answer to the one before it: those after one that fails, or
// with whose reply each is not content, may be carried out, and the transaction is
// not to be used but for Abort, as after any error of Call. A reply is valid until
// each returns. The bodies of cmds are changed, and are not to be used after.
func (t *Txn) CallAll(ctx context.Context, cmds []Command, each func(i int, reply bson.Raw) error) error {
	if err := t.check(); err != nil {
		return err
	}
	if len(cmds) == 0 {
		return nil
	}
	s := t.session
	bodies := s.bodies[:0]
	// Where the bodies grow to another place, those before stay where they were.
	for i := range cmds {
		extra := fields
		if !t.started {
			t.started, extra = true, startFields
		}
		from := len(bodies)
		var err error
		if bodies, err = s.appendBody(bodies, cmds[i].Body, extra); err != nil {
			return t.fail(err)
		}
		cmds[i].Body = bodies[from:len(bodies):len(bodies)]
	}
	if s.bodies = bodies; cap(bodies) > maxBodies {
		s.bodies = nil
	}
	if p, ok := s.caller.(Pipeliner); ok && len(cmds) > 1 {
		if err := p.CallAll(ctx, cmds, each); err != nil {
			return t.fail(err)
		}
		return nil
	}
	for i := range cmds {
		reply, err := s.caller.Call(ctx, cmds[i])
		if err == nil {
			err = each(i, reply)
		}
		if err != nil {
			return t.fail(err)
		}
	}
	return nil
}

// maxBodies is how much memory for the bodies of commands a session keeps, in bytes.
const maxBodies = 1 << 20

// fail makes the transaction one that cannot go on, and returns err.
func (t *Txn) fail(err error) error {
	t.err = fmt.Errorf("%w: a command of it failed", ErrTxnEnded)
	return err
}

// appendBody appends a command's body with the session's fields, and extra ones.
func (s *Session) appendBody(dst []byte, body bson.Raw, extra []byte) ([]byte, error) {
	n := len(body)
	if n < 5 {
		return dst, fmt.Errorf("add a session to a command: its body has %d bytes", n)
	}
	from := len(dst)
	dst = append(dst, body[:n-1]...)
	dst = append(dst, s.lsid...)
	dst = bsoncore.AppendInt64Element(dst, "txnNumber", s.number)
	dst = append(dst, extra...)
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from))
	return dst, nil
}
