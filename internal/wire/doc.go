// Package wire is the server's side of MongoDB's wire protocol: it reads messages
// from a connection, validates them, passes them to a [Handler] one after the other,
// and writes its replies.
//
// # Accepted messages
//
//   - OP_MSG with one body, document sequences, a checksum, the flags moreToCome
//     (no reply is wanted) and exhaustAllowed (several replies are).
//   - OP_QUERY on the collection $cmd of a database: the handshake of older
//     drivers and of the server's own members before 6.0. It is answered with
//     OP_REPLY. The handler decides which commands are allowed there, because that
//     depends on the server's version.
//
// Anything else is a [*ProtocolError] with its offset, and the connection is closed.
// All BSON is validated once, when it is read; handlers need not validate it again.
// The bytes of a message are not shared, so handlers may keep its documents.
//
// # One connection
//
//	           frames            messages, in order
//	conn ──▶ reader ──[one ahead]──▶ handler ──▶ replies ──▶ conn
//	           │                       ▲
//	           └── hang-up: ends ctx ──┘
//
// [Serve] runs one connection and owns it: it closes it before it returns, and
// all goroutines that it started have ended by then. While the handler runs, the
// reader reads one more message and then waits for the client to close the
// connection, which cancels the handler's context.
//
// The package trusts that handlers return bodies that are valid BSON, and that they
// return soon after their context has ended. Panics of handlers are not recovered.
//
// [Client] is the other side, for tests and for replaying transcripts: it sends
// bytes unchanged, with every option of a message.
package wire
