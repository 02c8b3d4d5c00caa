// Package standby decides which process leads a link, and when.
//
// Several processes may run one link, and one of them at a time may write to its target: that
// which has the link's lease (package lease). The others stand by. When the lease is free, the one
// that can go on best should have it: one that has the oplog in its spool, where the source does
// not have it any more.
//
//	          free, or offered, and this process can read on
//	stand by ────────────────────────────────────────────────▶ acquire ─▶ lead
//	   ▲  │                                                                │
//	   │  └ free, and another process may go on where this one cannot:     │
//	   │    it is left to that for a while                                 │
//	   └───────────────────────────── the lease is lost ◀──────────────────┘
//
// A leader that reads nothing of the source offers the lease meanwhile ([Candidate.WhileReading]),
// and one that would end because no member has the oplog does so before it ends
// ([Candidate.BeforeEnd]).
//
// The package only says when: what excludes two leaders is the lease.
package standby
