// Package clone copies the documents of collections from one member of the source
// into the target: in ranges, concurrently, each of which can be resumed.
//
// Clients write to a collection while it is copied, so the copy alone is not consistent.
// The oplog, from a time before the copy started, is applied afterwards. For that the
// package guarantees: a document that existed at the start and was not changed since is in
// the target exactly as in the source; a document that was changed is in the target at
// most once, in one of the versions that it had meanwhile.
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
// One goroutine reads and stays one reply ahead of another one, which writes. Documents
// are views into replies; replies that are not written yet take at most Config.Memory,
// over all ranges together.
//
// A flush is a transaction of the lane's session that first moves the range's document,
// with a filter on the term, and then inserts: progress and data commit together. So an
// attempt that ends at any point loses at most one flush, and a fenced one writes
// nothing. A document that exists already, because the source moved it ahead of the
// cursor, is replaced.
//
// # Orders
//
// Natural order is by record id, which find appends to each document and which is
// removed again. A range resumes after the last record. If that was deleted, the reader
// goes back to an earlier one that still exists, or to the start, and skips the
// documents that it has read. New documents have greater record ids than all others, so
// a skipped document was either read or is in the oplog. Large collections are divided
// at the record ids of samples.
//
// If record ids are not numbers (clustered collections), or the server does not return
// them, the order is that of _id, in pieces: a filter compares values of one type
// bracket only. So each bracket is read separately, and then all _ids that are in no
// bracket. Large collections are divided at samples within a bracket. The pieces contain
// every _id exactly once, for any samples.
//
// # Without transactions
//
// Capped collections and system collections cannot be written in transactions. They are
// written with retryable writes of the lane's session, with majority, and the range is
// moved afterwards in a transaction of its own. Writing twice is idempotent: documents
// are replaced, and those that a capped collection has already are skipped (see align).
//
// A capped collection is one range, in natural order, which is that of insertion. It
// ends before the first document that was inserted since the copy started: the oplog
// inserts those, in order, and their _ids may have been used before (see oldest).
// Documents that the source trimmed before they were read are left out. So the target
// never has more documents than the source had, and trims none that the source has. If
// the oplog does not delete trimmed documents, a copy that has lost its position ends
// with ErrHole (Config.NoHoles).
//
// # Trust
//
// Record ids are of one member, which has not changed: Config.Unchanged is asked after each
// find that begins or ends at one. By _id any member can continue (IsPortable). Record ids
// ascend, and are not reused while the member runs; a document for which a
// restarted member reuses an id is in the oplog. The server sorts samples by the
// collection's collation.
package clone
