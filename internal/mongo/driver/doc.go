// Package driver connects to MongoDB servers. It is the only package of the program
// that imports the official driver's client, and it uses the driver's lower layer only:
// connections with their pools, TLS, compression and authentication, and server
// monitoring. It does not use the driver's commands.
//
//	Parse ──▶ Options ──Open──▶ Set ──Call──▶ whichever member is primary
//	                             │
//	                             └─Member(host)──▶ member ──Call──▶ that host
//
// Set and Member implement [mongo.Caller]. In addition they guarantee:
//
//   - A command's body is sent unchanged. These are added: $db, the latest
//     $clusterTime, on a direct connection the read preference that lets a secondary answer, and to a read outside of
//     transactions that names no read concern the level local, in place of the set's own default; from 8.0 on, to a read
//     without a time limit the longest one, for the same reason. Never a session, a transaction number, or a write concern.
//   - A Call sends the command once. If no connection is available nothing is sent,
//     and another server may be selected until the selection timeout. A command is
//     sent twice only after the server refused it because the authentication has
//     expired (OIDC), and a new login.
//   - A document sequence is sent as one, its documents unchanged.
//   - A reply is a view of the network buffer.
//   - When ctx is done the connection is closed at once, so that the server can
//     interrupt the command, and the error is the cause of ctx. A reply that was
//     received before is returned.
//
// # Change of the primary
//
// The driver's monitors use the streaming hello protocol, so they notice an election
// at once. A "not primary" error, a shutdown and a broken connection are reported to
// them at once. A Call selects the current primary, or waits for one:
//
//	           a primary is known
//	┌──────┐ ─────────────────────────────▶ ┌──────┐  reply, refusal
//	│ Call │        ┌──────────┐  found     │ send │ ───────────────▶ done
//	└──────┘ ─────▶ │ choosing │ ─────────▶ └──────┘  lost: LostError, no retry
//	         none   └──────────┘              │ no connection: nothing was sent
//	                 │      ▲                 │
//	                 │      └─────────────────┘
//	                 ▼ selection timeout
//	              LostError without a host, with the state of each
//
// A Member does not select another server: if its host is known to be down, it is
// checked once more, for at most a second, and otherwise the call returns a LostError.
//
// # Credentials
//
// A password and a client certificate that are in files are read again when a connection is made after the file has
// changed. Connections that exist remain, as servers ask for neither again.
//
// # Trust
//
// A reply's outer document is validated, and the fields that this package reads; the
// caller validates the rest. The set's own list of its members is trusted. A Member
// does not check whether its host belongs to the set.
package driver
