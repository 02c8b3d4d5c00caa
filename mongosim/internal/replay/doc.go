// Package replay carries out entries of an oplog on a store: what a secondary
// does with its primary's log, and what the applyOps command does.
//
// An [Applier] takes entries in log order. Each takes effect at its own optime, in
// one unit of the store with the record of its session, and is appended to the
// store's oplog: at every timestamp the store has what the primary had then.
//
//	entry                         effect
//	insert, update, delete, DDL   at once
//	applyOps without a chain      all its operations, at once
//	partialTxn                    none, but the session's record says inProgress
//	prepare                       the unit is prepared: it locks, nobody sees it
//	end of a chain                all operations of the chain
//	commitTransaction             the prepared unit is committed, at this entry
//	abortTransaction              the prepared unit is aborted
//
// What belongs to a chain is not kept in memory: it is read from the store's own
// oplog when the chain ends. A new Applier finds prepared transactions by the
// records of their sessions, and prepares them again.
//
// Since a store's rollback is exact, entries are applied exactly once and to the
// data that they were logged on. So the Applier is strict: a document or
// collection that is not there, or an insert of one that is, is an error that
// names the entry. What the server's applier tolerates in any case is tolerated:
// deletes of what is gone, and commands that find their work done. With
// [Options.Tolerant] it is as forgiving as an initial sync, whose copy is newer
// than the log.
package replay
