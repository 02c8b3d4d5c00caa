package mongo

import (
	"context"
	"encoding/binary"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Pipeliner is a Caller that can send a command before the reply to the previous one
// arrived.
type Pipeliner interface {
	Caller
	// CallAll sends commands over one connection to one server, which executes them in
	// order, and calls each with their replies, in order. It stops at the first command
	// that fails, and returns its error as Call does, or at the first error of each, and
	// returns that. Later commands may or may not have been executed. A reply is valid
	// until each returns.
	CallAll(ctx context.Context, cmds []Command, each func(i int, reply bson.Raw) error) error
}

// CallAll runs commands in the transaction, in order, and calls each with their
// replies. If the session's Caller is a Pipeliner, a command does not wait for the reply
// to the previous one: commands after one that fails, or for whose reply each returns an
// error, may be executed. After an error the transaction must only be aborted, as after
// any error of Call. A reply is valid until each returns. CallAll changes the bodies of
// cmds, which must not be used afterwards.
func (t *Txn) CallAll(ctx context.Context, cmds []Command, each func(i int, reply bson.Raw) error) error {
	if err := t.check(); err != nil {
		return err
	}
	if len(cmds) == 0 {
		return nil
	}
	s := t.session
	bodies := s.bodies[:0]
	// If the memory is reallocated, earlier bodies stay valid where they were.
	for i := range cmds {
		extra := fields
		if !t.started {
			t.started, extra = true, begin(cmds[i].Body)
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

// maxBodies limits the memory that a session keeps for the bodies of commands, in bytes.
const maxBodies = 1 << 20

// fail records that the transaction cannot continue, and returns err.
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
