// Package request stores the requests of operators to a link: limits of its copy, and
// collections to copy again. They are documents in the target's metadata
// (collection requests), so they reach whichever process runs the link, on whatever
// machine, within a few seconds:
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
// From LeaveOut on, the collection is in the list leftOut of the link's document
// ([checkpoint.LeftOut]), until its request is done. If the request failed, the collection
// stays in that list until it is requested again.
package request
