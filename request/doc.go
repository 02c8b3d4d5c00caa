// Package request stores the requests of operators to a link, and their outcomes. They
// are documents in the target's metadata, so they reach whichever process runs the link, on
// whatever machine, within a few seconds, and outlast all of them.
//
// Limits of the copy, and collections to copy again, are in the collection requests:
//
//	{_id: LINK, bytesPerSecond, opsPerSecond}           each absent or 0 or more
//	{_id: "LINK/NS", ns, asked, state, why, again}      one for each collection
//
// Every user with write access to the metadata can write requests; they are not fenced.
// The answers are fenced: the process that has the link's lease writes them in a
// transaction with the link's document:
//
//	         LeaveOut                Answer                Answer
//	asked ────────────▶ copying ────────────▶ joining ────────────▶ done
//	  ▲                    │                     │                   │
//	  │                    └─────────┬───────────┘                   │
//	  │                              ▼        Resync, or             │
//	  └────────────────────────── failed      ResyncAgain before ◀───┘
//
// Other requests of operators are in the collection control, which releases that do not know it
// ignore:
//
//	{_id: LINK, asked, rev, term, paused, throttle, logLevel}         the Settings
//	{_id: "LINK/ID", kind, args, by, why, at, seq, state, outcome}    a Record for each request
//
//	asked ──▶ working ──▶ done, failed
//	  └─────▶ refused
//
// Any process may call [Store.Ask]. Only the leader changes the Settings ([Store.Set]), and then answers
// the record: a leader that dies between the two leaves the record open, and the next one carries it
// out again, which is idempotent. The Settings are authoritative, the records are their history. A leader
// writes for a request in transactions with the link's document, which fail once another process
// has acquired the lease: a former leader can neither change anything nor report that it has.
//
// From LeaveOut on, the collection is in the list leftOut of the link's document
// ([checkpoint.LeftOut]), until its request is done. If the request failed, the collection
// stays in that list until it is requested again.
package request
