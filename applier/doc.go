// Package applier applies batches to the target: in order where order matters,
// concurrently where it does not, and each operation exactly once.
//
//	            ┌────────────── lane 0 ──┐
//	batch ──▶ dispatch ────── lane 1 ──┤──▶ tracker ──▶ Applied
//	            │ └────────── lane n ──┘        ▲
//	            └── barrier: DDL, ──────────────┘
//	                transactions that span lanes
//
// # Order
//
// A lane applies its operations in the order of the log. All operations on one
// document go through one lane, chosen by a hash of its namespace and _id. All
// operations on an Ordered collection (capped, with a collation, with a unique index)
// go through one lane, chosen by the namespace. The metadata records which collections
// do, and the record decides, not the target's indexes of the moment: those can change
// by hand while the lanes are at different positions, and the lane that an operation
// had gone to could then no longer be told.
//
// What must be processed individually, and a transaction that spans lanes, goes through
// the barrier: it waits until every lane is empty, and nothing after it starts before it
// is done. That wait has no time limit, because an index build may take hours.
//
// # Exactly once
//
// A flush is one transaction of the lane's session. It moves the lane's document to the
// position of its last operation, and writes. All statements are in flight together; the
// commit is sent once each of them has had the expected effect. So a flush takes two
// round trips, and the lanes' documents say exactly what is in the target. After a
// restart, operations up to the position of their lane are skipped. The routing of
// operations before the barrier's position is no longer known, and need not be: all of
// them were in the target when the barrier moved there.
//
//	start ──▶ lanes apart ──── frozen: the record stays ────▶ log past them ──▶ barrier,
//	     └──▶ lanes not apart ──▶ the record follows the catalog ◀── record changed ◀──┘
//
//	operation at               is
//	<= barrier                 in the target
//	<  entry that was begun    in the target: it was waited for
//	<= its lane                in the target
//	otherwise                  not in the target: it is applied now
//
// In its transaction, a flush after the barrier verifies that the target still has what
// the lanes had acknowledged, and the first flush of each lane after the barrier
// verifies the barrier's position. So a target that fails over cannot lose the one and
// keep the other, and flushes need no write concern majority: the checkpoint waits for
// that.
//
// Transactions cannot write to capped collections, buckets and system collections. A
// span of operations on those is announced in the lane's document, written with
// retryable writes and write concern majority, and then recorded as done. After a crash
// in between, it is applied again idempotently: documents are replaced, updates accept
// any shape, and the inserts into a capped collection begin after the newest document
// that is there. Spans are cut so that this can always be told, even where _ids recur
// (see fitting).
//
// # Initial sync mode
//
// Up to CopiedUntil, operations may meet documents that are newer. An operation that
// finds no document or collection is ignored and counted: the source has dropped it
// since. The copy of a capped collection has only what was there before the log that is
// applied to it, so every insert is applied, in order; a document in its way is deleted
// first. So is a document whose _id is equal under a collation and spelled differently:
// no update can change that.
//
// A document may temporarily be what the source never had. Indexes that refuse it are
// dropped, and built again at CopiedUntil, before a watermark reaches it. A document
// that is temporarily too large is kept in the metadata ("oversized"), in the transaction
// that moves the lane, until it fits. One that is left at CopiedUntil is a
// *DivergenceError.
//
// # Failed flushes
//
//	flush ─┬─ committed ────────────────────────────────▶ acknowledged
//	       ├─ conflict, lock timeout ── pause ─┐
//	       │  ▲────────────────────────────────┘         retried for RetryFor
//	       ├─ too large, too slow ─── in two halves
//	       ├─ one operation refused ── in two halves ─┬─▶ fast again
//	       │                                          └─▶ one by one, with reads
//	       └─ no primary, no answer, fenced, rewound ───▶ Run returns
//
// Applying operations one by one tells a divergence from a failure of the shortcut. No
// operation is skipped silently: it is applied, or it is a *DivergenceError, a
// *UniqueError or an *OpError, or it had nothing to do and is counted.
//
// After Run has returned an error, a command whose reply was lost may still be executed.
// The next attempt raises the term of the lease first, which fences it.
//
// # Trust
//
// Positions ascend with the log. The catalog is what the target has, and only package
// ddl changes it. The memory of operations does not change until their batch is
// released; transactions are closed then.
package applier
