// Package batcher cuts the oplog into batches: spans of entries that the applier may
// apply concurrently, with transactions assembled, and between them the entries that
// must be processed individually.
//
//	replies ──in──▶ [delay] ─▶ txn.Assembler ─▶ cut ──out──▶ batches
//	                                │
//	                                └─ parts of open transactions, in memory
//	                                   and then in files
//
// # Where a batch ends
//
//   - With Config.MaxOps operations or Config.MaxBytes bytes. A transaction counts all
//     of its operations, every other entry counts one. A transaction or entry that
//     exceeds the limits alone is a batch of its own.
//   - Before and after an operation that must be processed individually
//     ([oplog.Op.MustBeProcessedIndividually]), and before and after a transaction or
//     applyOps with such an operation in it. The prepare of a transaction changes
//     nothing before its commit, and needs no batch of its own.
//   - When no more entries have arrived: the batch is sent at once. While the applier
//     is busy and does not receive from out, the batch continues to grow.
//   - Before an entry that Config.Delay holds back. Once Config.Drain is closed,
//     such an entry and all later ones are dropped.
//
// # Entries that change nothing
//
// No-ops, parts of transactions, aborts and transactions without an operation are
// counted in the current batch and advance its Last and FetchFrom. A batch of nothing
// else has no items, and is sent like others. Directly before an entry that must be
// processed individually they join its batch.
//
// Entries up to Config.ApplyAfter, which are read only for transactions that were open
// there, are in no batch.
//
// # Memory
//
// An entry keeps the buffer of its whole reply alive, so a reply's Bytes count for
// the batch with its last entry. A reply without any entry for a batch is released
// with Config.Release at once: its transaction parts have been copied. So
//
//	sum of Reply.Bytes = sum of Batch.Bytes + sum of what went to Release
//
// and no batch waits for another reply.
//
// # Errors
//
// All entries before an invalid one are sent before Run returns the error of package
// oplog or oplog/txn. A Batcher does not continue after an error: a new one starts
// after Config.ApplyAfter.
//
// # Trust
//
// The Assembler checks the order of entries. The delay is measured by this machine's
// clock against the seconds of the entries' timestamps, so a difference between the
// clocks adds to it.
package batcher
