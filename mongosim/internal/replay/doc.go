// Package replay applies entries of an oplog to a store, as a secondary does with its
// sync source's log, and as the applyOps command does.
//
// An [Applier] takes entries in log order. Each takes effect at its own optime, in
// one unit of the store with the record of its session, and is appended to the
// store's oplog: at every timestamp the store equals the primary's at that
// timestamp.
//
//	entry                         effect
//	insert, update, delete, DDL   at once
//	applyOps without a chain      all its operations, at once
//	partialTxn                    none, but the session's record says inProgress
//	prepare                       the unit is prepared: it locks, but is not visible
//	end of a chain                all operations of the chain
//	commitTransaction             the prepared unit is committed, at this entry
//	abortTransaction              the prepared unit is aborted
//
// The parts of a chain are not kept in memory: they are read from the store's own
// oplog when the chain ends. A new Applier finds prepared transactions by the
// records of their sessions, and prepares them again.
//
// Because a store's rollback is exact, entries are applied exactly once and to the
// data that they were logged for. So the Applier is strict: a missing document or
// collection, or an insert of an existing one, is an error that names the entry. As in
// the server's applier, deletes of missing documents and commands that have already
// been applied are ignored. With [Options.Tolerant] it follows the rules of initial
// sync, where the copy is newer than the log.
package replay
