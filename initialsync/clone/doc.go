// Package clone copies the documents of collections from one member of the source
// into the target: in ranges, concurrently, each of which can be resumed.
//
// A collection is written to while it is copied, so the copy is of no single time. The
// package guarantees what the oplog needs that is applied afterwards, from a time
// before the copy began: every document that existed at the beginning and was not
// changed since is in the target exactly as it is in the source; a document that was
// changed is in the target at most once, as it was at some time meanwhile.
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
// document, with a filter on the term, and then inserts: progress and data commit
// together, so an attempt that ends anywhere loses at most a flush, and one that was
// fenced writes nothing. A document that exists already, because the source moved it
// ahead of the cursor, is replaced.
//
// # Orders
//
// Natural order is by record id, which find appends to each document and which is
// removed again. A range resumes after the last record. If that one was deleted it
// goes back to an earlier one that still exists, or to the start, and skips what it
// has read. New documents have greater record ids than all others, so a skipped
// document was either read or is in the oplog. Large collections are divided at the
// record ids of samples.
//
// If record ids are no numbers (clustered collections), or the server does not show
// them, the order is that of _id, in pieces: a filter compares values of one type
// bracket only, so each bracket is read by itself, and what is in no bracket is read
// last. Large collections are divided at samples within a bracket. The pieces contain
// every _id exactly once, whatever the samples were.
//
// # Without transactions
//
// Capped collections and system collections cannot be written in transactions. They
// get retryable writes of the lane's session, with majority, and the range is moved
// after them in a transaction of its own. Writing twice is idempotent: documents are
// replaced, and those that a capped collection has already are skipped (see align).
//
// A capped collection is one range, in natural order, which is that of insertion. It
// ends before the first document that was inserted since the copy began: the oplog
// inserts those, in order, and their _ids may have been used before (see oldest).
// Documents that were discarded before they were read are left out. So the target never
// has more than the source had, and discards nothing that the source has not. If the
// oplog does not delete documents that were read and then discarded, a copy that has
// lost its place ends with ErrHole (Config.NoHoles).
//
// # What it trusts
//
// That the source is one member that has not rolled back: the caller checks that at the
// end. That record ids ascend, and are not reused while the member runs; a document for
// which a restarted member reuses an id is in the oplog. The server's own order of
// samples, which respects the collation.
package clone
