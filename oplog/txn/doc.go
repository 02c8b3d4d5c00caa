// Package txn assembles the transactions of an oplog.
//
// A transaction is logged as one entry or as a chain of them, with other entries
// in between; another entry, possibly much later, commits or aborts a prepared
// one. No part must be applied before the transaction is known to be committed.
// An [Assembler] takes every entry in log order and returns what to do: apply
// the entry, do nothing (a part that is kept, an abort), or apply a
// [Transaction], which takes effect as a whole at the entry just added. Grouped
// writes that are not transactions (a user's applyOps, writes that the server
// logged together) are returned as a Transaction of [KindApplyOps].
//
// The states of a chain; each entry but the first links to the one before:
//
//	state      entry                 next
//	(none)     partialTxn            open
//	(none)     prepare               prepared
//	(none)     neither               Committed: all of it in one entry
//	open       partialTxn            open
//	open       prepare               prepared
//	open       neither               Committed: the last part
//	open       abortTransaction      Aborted
//	open       session continues     dropped, and counted in Result.Dropped
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
// is a [*BrokenChainError], unless it is an abort, which has no effect, or a group
// of writes without a session that is no part of a chain (see appliesAlone). Entries
// out of order are [ErrOutOfOrder]; anything else that a server does not write
// is an [*oplog.EntryError]. Each part is parsed completely when it is added, so
// an error names the right entry, and reading a transaction later fails only if
// reading its files does. After an error the Assembler takes no more entries.
//
// Parts are copied, so no buffer of the source is kept from one Add to the
// next. Parts in memory take at most Config.MemoryBytes: beyond that the largest
// chain is moved to a file, with a checksum for each part. Chains share files of
// about 64 MiB. A file is deleted when the last transaction with parts in it has
// ended or was closed, so a transaction that stays open may keep more disk than
// its size. Where the system allows it, files are unlinked as soon as they are
// created, so that a crash leaves none.
//
// # Restarts
//
// Open chains are not saved but read again. A checkpoint is a pair of optimes
// that belongs to one entry, P, and is valid once everything up to P has been
// applied: ApplyAfter is P itself, and FetchFrom is the Result.FetchFrom that
// adding P returned.
//
// A new Assembler gets Config.ApplyAfter, and then every entry from FetchFrom
// on, inclusive. Up to and including ApplyAfter it only tracks the chains and
// returns [Past]; the operations of these entries are not parsed. Result.FetchFrom
// is null for them, because no new checkpoint is taken before ApplyAfter.
//
// The log must contain the entry ApplyAfter, with its timestamp and term (only
// its timestamp, if either has no term). A log that reaches a later entry, or an
// entry of a later term, without it is a [*ResumeError]: the entries that were
// applied are not part of its history.
//
// Of a chain that started before FetchFrom and ended at or before ApplyAfter, only
// later parts are added. An entry up to ApplyAfter whose link points before the
// first entry added belongs to such a chain, and so do the entries up to ApplyAfter
// that link to it. They are tracked without their operations. An entry after
// ApplyAfter that links to any of them is a BrokenChainError: FetchFrom and
// ApplyAfter are not from the same checkpoint.
//
// # Concurrency
//
// The package starts no goroutines. Neither an Assembler nor a Transaction is safe
// for concurrent use; they may be used in different goroutines.
package txn
