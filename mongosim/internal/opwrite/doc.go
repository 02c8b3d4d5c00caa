// Package opwrite is the write path of a primary: an operation on the data, the
// record of its session and its oplog entry become visible together, in the form that
// a server of the dialect's version writes.
//
// # Guarantees
//
// Each operation of a [Batch] commits separately, at a timestamp of its own, and
// the entry with that timestamp describes it completely: a member that applies the log
// to a copy has the same data, catalog and session records at every timestamp. Refused
// operations have no effect, except that their timestamps stay unused, as in a server.
//
// Entries have the same fields, in the same order, as recordings of a real 5.0 set; the
// other dialects differ from that only where the documented formats of those versions do:
//
//	FCV 4.4    updates by operators are $v:1, capped collections are trimmed
//	           without a trace in the log
//	5.0        images for retries are no-op entries that the entry points to
//	6.0, 7.0   images are in config.image_collection (needsRetryImage), inserts
//	           have the document's key in o2, stmtId stands with the operation
//	7.0        multi-deletes are applyOps entries of up to ten documents
//	8.0        the same, and inserts of several documents are one applyOps entry, with
//	           multiOpType 1 if they can be retried
//
// # Transactions
//
// A [Txn] works on a unit of the store that stays open between calls of Path.Write.
//
//	open ──Commit──▶ (one entry, or a chain of partialTxn entries)
//	  │ ╲──Abort───▶ (nothing is logged)
//	  ▼
//	Prepare ──CommitPrepared──▶ commitTransaction
//	  │ ╲─────Abort───────────▶ abortTransaction
//	  ╰───────Release─────────▶ nothing: another member decides
//
// The records of sessions (config.transactions) are written at the same timestamp,
// without entries of their own: a secondary derives them from the same entries.
//
// # Trust
//
// The caller has checked names, options and documents, has found the documents that a
// statement matches, and does not call for writes without an effect. Documents that
// are passed in are copied.
package opwrite
