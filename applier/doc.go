// Package applier brings the log to the target: in order where order matters, in
// parallel where it does not, and exactly once.
//
//	            ┌────────────── lane 0 ──┐
//	batch ──▶ dispatch ────── lane 1 ──┤──▶ tracker ──▶ Applied
//	            │ └────────── lane n ──┘        ▲
//	            └── barrier: commands, ─────────┘
//	                transactions that span lanes
//
// # What keeps the order
//
// All operations of one document go through one lane, chosen by a hash of its
// namespace and _id; all of a collection that is Ordered (capped, with a
// collation, with a unique index) go through one lane by its namespace alone. Which
// collections do is recorded in the metadata, and the record decides: the target's
// indexes may change while lanes are apart, by hand, and then the lane that an
// operation had could not be told any more. A
// lane does its operations in the log's order. Nothing else depends on anything
// but through the barrier: what stands alone in the log, or spans lanes and has to
// be atomic, waits until every lane is empty, and nothing after it starts before
// it is done. The wait has no end of its own: an index build may take hours.
//
// # What makes it exactly once
//
// A flush is one transaction on the lane's session. It moves the lane's document
// to the position of its last operation, and writes. All of that is sent without
// waiting for answers in between; the commit waits until each statement is known to
// have done what it should, and a lane that did not move is looked at before what
// came after it. So a flush takes two round trips, and the lanes' documents say
// exactly what is in the target, and operations at or before the position of
// their lane are skipped after a restart. Which lane that is depends on what is
// recorded, and what that was before the barrier is not known any more: so what is
// behind the barrier's position is all that is looked at. Everything before it was in
// the target when it began.
//
//	start ──▶ lanes apart ──── frozen: the record stays ────▶ log past them ──▶ barrier,
//	     └──▶ lanes not apart ──▶ the record follows the catalog ◀── record changed ◀──┘
//
//	operation at            is
//	<= barrier              in the target
//	<  entry that was begun in the target, as it was waited for
//	<= its lane             in the target
//	else                    not in the target, and done now
//
// A flush after the barrier finds, in its transaction, that the target still has
// what the lanes had acknowledged; and the first flush of each lane after it finds
// the barrier's. So a target that fails over and loses the one cannot take the
// other. Flushes need no majority then: that is waited for by the checkpoint.
//
// Transactions cannot write to capped collections, buckets and system
// collections. A span of operations of those is announced in the lane's
// document, written with retryable commands and majority, and then noted as done.
// After a crash in between it is done again in a way that bears what was done
// already: documents are replaced, updates meet any shape, and the inserts of a
// capped collection begin after the newest one that is there. What is announced at
// once is so chosen that this can be told (see fitting), though _ids come again.
//
// # Over a copy
//
// Up to CopiedUntil operations meet documents that may be newer. What they do not
// find they pass over, and count; they make no collection, as one that is missing
// is one that the source has dropped. The copy of a capped collection has only what
// was there before the log that is applied to it, so that all of it is inserted in
// order; what is in the way of an insert all the same is deleted first. So is, where a
// collation makes two spellings one _id, a document whose _id is spelled in another way
// than the one that takes its place: no update may change that.
//
// A document may be for a while what the source never had. Indexes that refuse it are
// dropped, and built again at CopiedUntil, before any watermark is behind it; a
// document that is too large is put aside in the metadata ("parked"), in the
// transaction that moves the lane, until it fits. One that is left at CopiedUntil is a
// *DivergenceError.
//
// # What becomes of a flush
//
//	flush ─┬─ committed ────────────────────────────────▶ acknowledged
//	       ├─ conflict, lock timeout ── wait ──┐
//	       │  ▲──────────────────────────────┘          for RetryFor
//	       ├─ too large, too slow ─── in two halves
//	       ├─ one operation refused ── in two halves ─┬─▶ fast again
//	       │                                          └─▶ one by one, with reads
//	       └─ no primary, no answer, fenced, rewound ───▶ Run returns
//
// One by one is where a divergence is told from what only looked like one. The
// target is never left with an operation passed over in silence: it is applied,
// or it is a *DivergenceError, a *UniqueError or an *OpError, or it had nothing
// to do and is counted.
//
// After Run has returned an error nothing of it goes on, but a command whose
// answer was lost may still be carried out. Who begins again raises the term of
// the checkpoint first, which fences it.
//
// # Trust
//
// Positions ascend with the log. The catalog is what the target has, and only
// package ddl changes it. The operations' memory stays as it is until their batch
// is released; transactions are closed then.
package applier
