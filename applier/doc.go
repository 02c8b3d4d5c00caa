// Package applier applies batches to the target: in order where order matters,
// concurrently where it does not, and each operation exactly once.
//
// A lane is a writer goroutine with a document in the target that records its position,
// and a logical session for its transactions (see package checkpoint).
//
//	            ┌──────────── lane 0 ──┐
//	batch ──▶ dispatch ────── lane 1 ──┤──▶ tracker ──▶ watermark
//	            │ └────────── lane n ──┘        ▲
//	            └── barrier: DDL, ──────────────┘
//	                transactions that span lanes
//
// # Order
//
// A lane applies its operations in the order of the log. All operations on one
// document go through one lane, chosen by a hash of its namespace and _id. All
// operations on an Ordered collection (capped, with a collation, with a unique index)
// go through one lane, chosen by the namespace; so do, where there are many, those on a
// collection with few operations (see shares). The metadata records which collections
// do, and that record decides, not the target's current indexes. Those can be changed
// by hand while the lanes are at different positions; after a restart it would then be
// unknown which lane an operation had been assigned to. If the lanes are at different
// positions at the start, the record stays as it is until the oplog has passed all of them:
//
//	start ──▶ lanes apart ──── frozen: the record stays ──▶ oplog past all lanes ──▶ barrier,
//	     └──▶ lanes not apart ──▶ the record follows the catalog ◀── record changed ◀──┘
//
// Operations that must be processed individually, and transactions that span lanes, go
// through the barrier: it waits until every lane is idle, and no later operation starts
// before it is done. That wait has no time limit, because an index build may take hours.
//
// # Exactly once
//
// A flush is one transaction of the lane's session. It moves the lane's document to the
// position of its last operation, and writes. All statements are in flight together; the
// commit is sent once each of them has had the expected effect. So a flush takes two
// round trips, and the lanes' documents record exactly which operations are in the target.
// After a restart, operations up to the position of their lane are skipped. Operations up
// to the barrier's position are skipped whatever their lane: all of them were in the target
// when the barrier moved there.
//
//	operation at               is
//	<= barrier                 in the target
//	<  announced entry         in the target: the barrier waited for it
//	<= its lane                in the target
//	otherwise                  not in the target: it is applied now
//
// In its transaction, a flush of the barrier verifies that the target still has the
// operations that the lanes had acknowledged, and the first flush of each lane after the
// barrier verifies the barrier's position. So a failover of the target cannot lose one of
// them and keep the other, and flushes do not need write concern majority: the checkpoint
// waits for it.
//
// Transactions cannot write to capped collections, buckets and system collections. A
// span of operations on those is announced in the lane's document, written with
// retryable writes and write concern majority, and then recorded as done. After a crash
// in between, it is applied again idempotently: documents are replaced, updates accept
// any shape, and the inserts into a capped collection start after its newest document.
// Spans are cut so that this document can always be found in the span, even where _ids
// recur (see fitting).
//
// # Initial sync mode
//
// Up to CopiedUntil, operations may meet documents that are newer. An operation that
// finds no document or collection is ignored and counted: the source has removed it
// since. The copy of a capped collection has only documents from before the log that is
// applied to it, so every insert is applied, in order; an existing document with the same
// _id is deleted first. So is a document whose _id is equal under a collation but has
// different bytes, because no update can change an _id.
//
// A document may temporarily have contents that it never had at the source. Indexes that
// refuse it are dropped, and built again at CopiedUntil, before a watermark reaches it. A document
// that is temporarily too large is kept in the metadata ("oversized"), in the transaction
// that moves the lane, until it fits. One that is left at CopiedUntil is a
// *DivergenceError. So is a document of a capped collection whose size has changed, where the
// target refuses that (see resized.go).
//
// # Index builds
//
// While the target executes a commitIndexBuild, the lanes continue with all other
// collections. The operations of its own are kept back, and the barrier's lane writes them
// afterwards (see backlog). What the lanes' positions say does not include them:
//
//	operation of a collection that is kept back, at    is
//	<= barrier                                         in the target
//	>  barrier, after the commit                       not in the target, whatever its lane
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
// Applying operations one by one distinguishes a divergence from an operation that only
// fails in a batch. No operation is skipped silently: it is applied, or it is a
// *DivergenceError, a *UniqueError or an *OpError, or it had no effect and is counted.
//
// After Run has returned an error, a command whose reply was lost may still be executed.
// The next attempt raises the term of the lease first, which fences it.
//
// # Files
//
//	applier.go, dispatch.go   the stage; which operations are applied, and in which lane (routes.go)
//	lane.go, writer.go        a lane's queue; its flushes: their statements (statement.go), their failures
//	direct.go, capped.go      writes outside of transactions
//	barrier.go, tracker.go    commands and transactions that span lanes; the watermark
//	backlog.go, headstart.go  index builds while the lanes continue
//	shares.go, fewlanes.go, level.go    the lanes of collections with few operations
//	copied.go, oversized.go, resized.go documents that are newer than the log
//	spelling.go, dollars.go   documents that no update of the target makes
//	cut.go, repair.go, diverged.go      consistent cuts, repairs, divergences
//
// # Trust
//
// Positions ascend with the log. The catalog equals the target's, and only package ddl
// changes it. The memory of operations does not change until their batch is released;
// transactions are closed then.
package applier
