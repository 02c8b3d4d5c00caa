package wire

import (
	"context"
	"fmt"
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Request is a command as a client sends it.
type Request struct {
	// Body is the command, $db included.
	Body bson.Raw
	// Sequences are document sequences: sections of their own, after the body.
	Sequences []Sequence
	// Checksum adds the CRC-32C; the server's reply then has one too.
	Checksum bool
	// Exhaust allows the server to send further replies without further
	// requests.
	Exhaust bool
	// NoReply tells the server not to answer (w:0).
	NoReply bool
	// LegacyDB, if not empty, sends the body as OP_QUERY on this database's
	// command collection. Nothing else of the request counts then.
	LegacyDB string
}

// Client is the client's end of a connection: requests are sent, and replies
// returned, unchanged. It does no handshake. It is not safe for concurrent use.
type Client struct {
	conn   net.Conn
	reader *Reader
	lastID int32
}

// NewClient returns a Client over conn, which Close closes.
func NewClient(conn net.Conn) *Client {
	return &Client{conn: conn, reader: NewReader(conn)}
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Call sends a command and returns its one reply. Whether the reply is that of
// a failed command is for the caller to see. After an error the connection
// cannot be used any further; that includes the end of ctx.
func (c *Client) Call(ctx context.Context, body bson.Raw) (bson.Raw, error) {
	id, err := c.Send(ctx, Request{Body: body})
	if err != nil {
		return nil, err
	}
	reply, err := c.Receive(ctx)
	if err != nil {
		return nil, err
	}
	if reply.ResponseTo != id || reply.Flags.Has(MoreToCome) {
		return nil, fmt.Errorf("wire: call %d: the reply answers %d, with flags %#x", id, reply.ResponseTo, uint32(reply.Flags))
	}
	return reply.Body, nil
}

// Send sends a request and returns its number, which the reply answers to.
func (c *Client) Send(ctx context.Context, req Request) (id int32, err error) {
	c.lastID++
	m := &Message{RequestID: c.lastID, Body: req.Body, Sequences: req.Sequences}
	var buf []byte
	if req.LegacyDB != "" {
		buf, err = AppendLegacyQuery(nil, m, req.LegacyDB)
	} else {
		m.Flags = req.flags()
		buf, err = AppendMessage(nil, m)
	}
	if err != nil {
		return 0, err
	}
	err = c.within(ctx, func() error {
		_, err := c.conn.Write(buf)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("wire: send message %d: %w", m.RequestID, err)
	}
	return m.RequestID, nil
}

func (r *Request) flags() Flags {
	var f Flags
	for _, bit := range []struct {
		set  bool
		flag Flags
	}{{r.Checksum, ChecksumPresent}, {r.Exhaust, ExhaustAllowed}, {r.NoReply, MoreToCome}} {
		if bit.set {
			f |= bit.flag
		}
	}
	return f
}

// Receive returns the next reply. In a stream every reply but the last has
// MoreToCome, and answers to the one before it.
func (c *Client) Receive(ctx context.Context) (*Message, error) {
	var reply *Message
	err := c.within(ctx, func() (err error) {
		reply, err = c.reader.ReadReply()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("wire: receive a reply: %w", err)
	}
	return reply, nil
}

// within does io on the connection and breaks it off when ctx ends.
func (c *Client) within(ctx context.Context, io func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetDeadline(time.Unix(1, 0)) // a connection without deadlines is closed by its owner
	})
	err := io()
	if !stop() {
		return context.Cause(ctx)
	}
	return err
}
