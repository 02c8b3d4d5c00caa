// Package storage keeps the data of one member in memory, at every time that
// somebody may still ask for.
//
// # Units and views
//
// All changes are made by a [Unit]. Until it commits only its own view shows them;
// from its commit timestamp on, every view does. The commit timestamp of a write
// is the timestamp of its entry in the oplog, so a [View] at the majority commit
// point, which is what [Writer.SetStable] is told, shows what majority reads may
// see, and a view at any other time shows a snapshot.
//
//	            ┌── Abort ──────────────▶ never was
//	Begin ──▶ open ── Prepare ──▶ prepared ──┬── Abort
//	            └── Commit ─────────────────┴── Commit ──▶ seen from a timestamp on
//	                                                └── RollbackTo before it ──▶ never was
//
// Two open units never change the same thing: the second is refused with
// [ErrWriteConflict], and so is a unit that changes what was committed after its
// snapshot. A change to the catalog is in conflict with all writes of other open
// units to the collection, and they are with it: nothing here waits for a lock.
//
// # What is kept
//
// A version that was replaced is kept while a view could show it: until the
// version after it is at or before the stable timestamp less the history window,
// and no pin and no open unit reads an older time. What commits after the stable
// timestamp is kept in a journal too, which is what a rollback undoes. So memory
// is in proportion to the data and the writes of the last seconds.
//
// The database local has no versions: its newest state is seen at every time, and
// no rollback changes it.
//
// # What is trusted
//
// Documents and specifications are valid BSON, which the caller has checked, and
// stay what they are: Insert, Update and Append copy them. Collection options and
// index specifications are in the form that listCollections and listIndexes show.
// Indexes are constraints only: unique keys, arrays in parallel, hashed arrays.
// Text, geo and wildcard indexes constrain nothing here.
package storage
