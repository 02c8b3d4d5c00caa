// Package driver speaks to MongoDB servers. It is the only package of the program
// that imports the official driver, and of the driver it uses the lower layer:
// what it takes from there are connections, with their pools, TLS, compression
// and logins, and the watching of a deployment. The commands are our own.
//
//	Parse ──▶ Options ──Open──▶ Set ──Call──▶ whichever member is primary
//	                             │
//	                             └─Member(host)──▶ Member ──Call──▶ that host
//
// Set and Member are [mongo.Caller]. What they promise beyond it:
//
//   - A command's body arrives as it was given. To it are added $db, $clusterTime
//     as it was last heard of, the API version where one is configured, and on a
//     direct connection the read preference that lets a secondary answer. Never a
//     session, a transaction number, a concern or a time limit.
//   - One Call is one send. Where a connection could not be had nothing was sent,
//     and another server may be chosen until the selection timeout. The one command
//     that is sent twice is one that the server refused because a login has
//     expired (OIDC), after a new login.
//   - A document sequence is sent as one, its documents copied as they are.
//   - A reply is a view of the buffer that the network filled.
//   - When ctx ends the connection is closed at once, so that the server too can
//     give up, and the error is the cause of ctx. A reply that was there by then is
//     returned.
//
// # How a change of the primary is met
//
// The driver's monitors hold a hello open at each member, so an election is heard
// of when it happens. A refusal that says "not primary", a shutdown and a broken
// connection are told to them at once. A Call finds the server that is primary by
// then, or waits for one:
//
//	           a primary is known
//	┌──────┐ ─────────────────────────────▶ ┌──────┐  reply, refusal
//	│ Call │        ┌──────────┐  found     │ send │ ───────────────▶ done
//	└──────┘ ─────▶ │ choosing │ ─────────▶ └──────┘  lost: LostError, never again
//	         none   └──────────┘              │ no connection: nothing was sent
//	                 │      ▲                 │
//	                 │      └─────────────────┘
//	                 ▼ selection timeout
//	              LostError without a host, with what was seen of each
//
// A Member does not choose: where its host is known to be down, it is looked at
// once more, within a second if it answers, and otherwise the call is lost.
//
// # What it trusts
//
// A reply's outer document is checked, and what is read of it; what is inside the
// fields is for the caller to check. The set's own list of its members is believed.
// A Member does not ask whether its host is of the set.
package driver
