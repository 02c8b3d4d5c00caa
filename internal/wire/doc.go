// Package wire speaks MongoDB's wire protocol from the server's side: it cuts a
// connection into messages, checks them, hands them to a [Handler] one after
// the other, and writes its replies.
//
// # What is accepted
//
//   - OP_MSG with one body, document sequences, a checksum, the flags moreToCome
//     (no reply is wanted) and exhaustAllowed (several replies are).
//   - OP_QUERY on the collection $cmd of a database: the handshake of older
//     drivers and of the server's own members before 6.0. It is answered with
//     OP_REPLY. Which commands may come that way depends on the server's version
//     and is the handler's business.
//
// Anything else is malformed: a [*ProtocolError] that says what and where. The
// connection is closed and nothing else happens. All BSON is checked once, when
// it is read; handlers need not do it again. The bytes of a message belong to
// it alone, so its documents may be kept.
//
// # One connection
//
//	           frames            messages, in order
//	conn ──▶ reader ──[one ahead]──▶ handler ──▶ replies ──▶ conn
//	           │                       ▲
//	           └── hang-up: ends ctx ──┘
//
// [Serve] runs one connection and owns it: it closes it before it returns, and
// whatever it started has ended by then. While the handler is at work the reader
// takes in one message more and then watches for the client to hang up, so that
// a handler that waits for data learns of it through its context.
//
// What is trusted: that handlers return bodies that are valid BSON, and that
// they return soon after their context has ended. Panics of handlers are not
// recovered.
//
// [Client] is the other side, for tests and for replaying transcripts: bytes in,
// bytes out, with every option that a message has.
package wire
