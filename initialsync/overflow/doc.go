// Package overflow spools the oplog to disk while the target does not keep up, so that the source may
// delete it meanwhile: see docs/adr/0021-the-oplog-goes-to-disk-while-the-target-waits.md.
//
// The target may be away for hours, or build an index, while the memory for entries is full, and the
// source's oplog is finite. Then nothing more is read into memory, and what the source has from the
// checkpoint on goes into the spool of [initialsync.Log]:
//
//	                 the target stands, or is too slow
//	read into memory ─────────────────────────────────▶ spooling ─▶ the next attempt reads the spool
//	        ▲                                              │
//	        └───────── the spool cannot be filled ◀────────┘
//
// [Attempt.Run] decides that within an attempt, [Overflow.Meanwhile] and [Overflow.SpoolIfDue]
// between two of them. The attempt itself ends in order. With a relay log, every attempt reads through
// the spool while its folder can be written to ([Overflow.Relays]).
package overflow
