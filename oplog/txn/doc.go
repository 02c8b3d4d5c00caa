// Package txn puts the transactions of an oplog back together.
//
// A transaction reaches the log as one entry or as a chain of them, with other
// entries in between, and a prepared one is decided by yet another entry, maybe
// long after. None of it may be applied before it is known to be committed. An
// [Assembler] takes every entry in log order and says what to do with it: apply
// it as it is, nothing (a part that is kept, an abort), or apply a
// [Transaction], which takes effect as a whole at the entry just added. Grouped
// writes that are no transactions (a user's applyOps, writes that the server
// logged together) come out as a Transaction too, of [KindApplyOps], so that
// there is one way to the inner operations.
//
// A chain's life, each entry but the first linking to the one before:
//
//	state      entry                 next
//	(none)     partialTxn            open
//	(none)     prepare               prepared
//	(none)     neither               Committed: all of it in one entry
//	open       partialTxn            open
//	open       prepare               prepared
//	open       neither               Committed: the last part
//	open       abortTransaction      Aborted
//	open       session goes on       dropped, and counted in Result.Dropped
//	prepared   commitTransaction     Committed
//	prepared   abortTransaction      Aborted
//
// Chains are linked by optimes: each part names its predecessor, and a
// transaction's end names its last part. Sessions do not link, because the
// server also chains large groups of writes that have none (since 7.0), but
// parts of a chain with different sessions are refused.
//
// # Guarantees
//
// Nothing is skipped or guessed. An entry that links to one that was not added
// is a [*BrokenChainError], unless it is an abort: then there is nothing that
// could have been missed. Entries out of order are [ErrOutOfOrder]; anything
// else that a server does not write is an [*oplog.EntryError]. Each part is
// read to the end when it is added, so that a fault names the entry that has
// it, and reading a transaction later can fail on its files only. After an
// error the Assembler takes no more entries.
//
// Parts are copied, so no buffer of the source is kept from one Add to the
// next. What is held in memory stays within Config.MemoryBytes: beyond it the
// largest chain goes to a file, with a checksum for each part. Chains share
// files of some 64 MiB, and a file is closed and its disk free when the last
// transaction with parts in it has ended or was closed, so that one that stays
// open keeps more of the disk than its size. Files have no name in the file
// system from the start where that is possible, so that a crash leaves none
// behind.
//
// # Restarts
//
// Open chains are not saved. They are read again: a checkpoint is a pair of
// optimes, to fetch from and to apply after. It belongs to one entry, P, and is
// right once everything up to P has been applied. To apply after is P itself, to
// fetch from is the Result.FetchFrom that adding P gave.
//
// A new Assembler gets the entry to apply after as Config.ApplyAfter, and then
// every entry from the one to fetch from on, that one included. Up to and with
// ApplyAfter it follows the chains and has nothing to apply, which it calls
// [Past], and what is not needed for that is not looked into. There is no new
// checkpoint to take before ApplyAfter, and so FetchFrom is null there.
//
// The entry ApplyAfter has to be in the log, with its timestamp and term (with
// its timestamp, if either has no term). A log that comes to a later one without
// it, or to one of a later term, is a [*ResumeError]: what was applied is not
// part of its history.
//
// Chains that began before the entry to fetch from and ended up to ApplyAfter
// show only their later parts then. The rule: an entry up to ApplyAfter whose link
// points before the first entry added belongs to such a chain, and so do the
// entries up to ApplyAfter that link to it. They are followed without their
// operations. An entry after ApplyAfter that links to any of them is a
// BrokenChainError, because the pair did not belong together.
//
// # Trust
//
// The package starts no goroutines. An Assembler is for one goroutine at a time;
// so is a Transaction, which may be another one than the Assembler's.
package txn
