package driver

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
)

// stream is a connection that is used below the driver, for many messages in a row. For
// each message that it reads or writes the driver starts a goroutine that waits for the
// end of the context, and allocates each reply. Here one function waits for all of them, and
// replies share one buffer.
type stream struct {
	*conn
	id string // the driver's
	// stop ends the wait for the end of the context; it returns false if that has closed the
	// connection.
	stop func() bool
	// reply is the last one.
	reply []byte
}

// streamOf returns the stream below one of the driver's connections, to be used until stop
// is called. It returns nil with TLS, which is above it.
func (s *sender) streamOf(ctx context.Context, c *mnet.Connection) *stream {
	if s.throughDriver {
		return nil
	}
	under := s.dialer.of(c)
	if under == nil || under.SetDeadline(time.Time{}) != nil {
		return nil
	}
	t := &stream{conn: under, id: c.ID()}
	t.stop = context.AfterFunc(ctx, func() { _ = under.Close() })
	return t
}

// send writes messages.
func (t *stream) send(ctx context.Context, wm []byte) error {
	_, err := t.Write(wm)
	return t.fault(ctx, err)
}

// receive reads the next message, which is valid until the next call.
func (t *stream) receive(ctx context.Context) ([]byte, error) {
	t.reply = slices.Grow(t.reply[:0], headerSize)[:headerSize]
	if _, err := io.ReadFull(t, t.reply); err != nil {
		return nil, t.fault(ctx, err)
	}
	size := binary.LittleEndian.Uint32(t.reply)
	if size < headerSize || size > maxMessage {
		return nil, t.fault(ctx, fmt.Errorf("a message of %d bytes", size))
	}
	t.reply = slices.Grow(t.reply, int(size)-headerSize)[:size]
	_, err := io.ReadFull(t, t.reply[headerSize:])
	return t.reply, t.fault(ctx, err)
}

// fault returns err in the form in which the driver's monitor of the server knows it: an
// end of the context says nothing about the server.
func (t *stream) fault(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Canceled
	}
	return topology.ConnectionError{ConnectionID: t.id, Wrapped: err}
}
