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
//   - With Config.MaxOps operations or Config.MaxBytes bytes. A transaction has as
//     many operations as it has, every other entry is one. What alone is more than
//     the limits is a batch of its own.
//   - Before and after what must be processed individually
//     ([oplog.Op.MustBeProcessedIndividually]), and before and after a transaction or
//     applyOps with such an operation in it. The prepare of a transaction changes
//     nothing before its commit, and needs no batch of its own.
//   - With the last entry that has come: what is there is passed on at once. While
//     the applier is busy, and out takes nothing, the batch goes on growing.
//     Config.Fill makes it wait for more.
//   - Before an entry that Config.Delay keeps back. Once Config.Drain is closed,
//     such an entry is given up, with all that follow.
//
// # Entries that change nothing
//
// No-ops, parts of transactions, aborts and transactions without an operation are
// counted in the batch that they come in, whose Last and FetchFrom they move. A
// batch of nothing else has no items, and is sent like others. Before an entry that
// must be processed individually they join its batch.
//
// Entries up to Config.ApplyAfter, which are read for the sake of transactions
// that were open there, are in no batch.
//
// # Memory
//
// An entry keeps the buffer of its whole reply alive, so a reply's Bytes are those
// of the batch that its last entry is in. A reply without any entry for a batch is
// given back by Config.Release at once: what is needed of it has been copied. So
//
//	sum of Reply.Bytes = sum of Batch.Bytes + sum of what went to Release
//
// and whatever is in a batch is on its way without another reply having to come.
//
// # Errors
//
// Everything ahead of an entry that cannot be taken is handed on before Run
// returns its error, which is that of oplog or oplog/txn. A Batcher repairs
// nothing: a new one begins where Config.ApplyAfter says.
//
// # Trust
//
// That entries come in the log's order is checked by the Assembler. The delay is
// measured by this machine's clock against the seconds of the entries' timestamps,
// so a difference between the clocks adds to it.
package batcher
