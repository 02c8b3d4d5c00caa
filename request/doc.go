// Package request stores what operators ask of a link: limits of its copy, and
// collections to be copied again. The requests are documents in the target's metadata
// (collection requests), so they reach whichever process runs the link, on whatever
// machine, within a few seconds:
//
//	{_id: LINK, bytesPerSecond, opsPerSecond}           each absent or 0 or more
//	{_id: "LINK/NS", ns, asked, state, why, again}      one for each collection
//
// Anybody may write them who may write to the metadata: they say what is wanted, not
// what was done, and are not fenced. The answers are. The process that has the lease
// of the link writes them in a transaction with the link's document:
//
//	         LeaveOut                Answer                Answer
//	asked ────────────▶ copying ────────────▶ joining ────────────▶ done
//	  ▲                    │                     │                   │
//	  │                    └─────────┬───────────┘                   │
//	  │                              ▼        Resync, or             │
//	  └────────────────────────── failed      ResyncAgain before ◀───┘
//
// From LeaveOut on, the collection is in the list leftOut of the link's document
// ([checkpoint.LeftOut]), until it is done. One that failed stays in that list until it
// is requested again.
package request
