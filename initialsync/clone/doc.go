// Package clone copies the documents of collections from one member of the source
// into the target: in ranges, side by side, each of which goes on where it was.
//
// A collection is written to while it is copied, so what is copied is of no one
// time. What the package guarantees is what a log needs that is replayed
// afterwards, from a time before the copy began: every document that was there at
// the beginning, and that nobody has touched since, is in the target exactly as it
// is in the source; of those that were touched there is at most one, as it was at
// some time meanwhile.
//
// # A range
//
//	        Split                 Copy: read ─▶ page ─▶ flush ─▶ moved
//	┌─────┐ ─────▶ ┌───────────┐ ────────────────────────────────┐
//	│ one │        │ spec, at  │ ◀───────────────────────────────┘
//	└─────┘        └───────────┘      last page      ┌──────┐
//	                     │ ────────────────────────▶ │ done │
//	                     ▼ dropped                   └──────┘
//	                 ErrGone
//
// One goroutine reads and stays one reply ahead of the other one, which writes.
// Documents are views into replies; what was read and is not written takes no more
// than Config.Memory, over all ranges together.
//
// A flush is a transaction of the lane's session that first moves the range's
// document, finding the term, and then inserts: progress and data commit together,
// so an attempt that ends anywhere loses at most a flush, and one that was fenced
// writes nothing. A document that is there already, because it moved behind us
// while we read, is replaced.
//
// # Orders
//
// Natural order is by record id, which find appends to each document and which is
// cut off again. A range goes on after the last record. If that one was deleted
// it goes back to one before it that is still there, or to the start, and passes
// over what it has read. New documents have greater record ids than all others, so
// one that is passed over was either read or is in the log. Large collections are
// cut at the record ids of samples.
//
// Where record ids are no numbers (clustered collections), or the server refuses
// to tell them, the order is that of _id, in pieces: a filter compares values of
// one bracket of types only, so each bracket is read by itself, and what is in no
// bracket is read last. Large collections are cut at samples within a bracket. The
// pieces have every _id exactly once whatever the samples were.
//
// # Without transactions
//
// Capped collections and those of the system cannot be written in transactions.
// They get retryable writes of the lane's session, with majority, and the range is
// moved after them in a transaction of its own. What is written twice then does no
// harm: documents are replaced, and what a capped collection has is passed over (see
// align).
//
// A capped collection is one range, in natural order, which is that of insertion. It
// ends before the first document that was inserted since the copy began: those come
// with the log, in order, and their _ids may have been others' (see oldest). Documents
// that were pushed out before they were read are left out. So the target never has
// more than the source had, and what it trims by itself the source has trimmed. Where
// the log would not delete what was read and then pushed out, a copy that has lost its
// place ends with ErrHole (Config.NoHoles).
//
// # What it trusts
//
// That the source is one member, which has not rolled back: who copies looks into
// that at the end. That record ids ascend, and are not given again while the member
// runs; a document that a restarted member puts at the id of a deleted one is in
// the log. The server's own order of samples, which knows the collation.
package clone
