// Package storage keeps the data of one member in memory, with the versions at all
// timestamps that can still be read.
//
// # Units and views
//
// All changes are made by a [Unit]. Until it commits only its own view shows them;
// from its commit timestamp on, every view does. The commit timestamp of a write
// is the timestamp of its entry in the oplog. So a [View] at the majority commit
// point, which [Writer.SetStable] sets, is the view of majority reads, and a view at
// any other time is a snapshot.
//
//	            ┌── Abort ──────────────▶ never was
//	Begin ──▶ open ── Prepare ──▶ prepared ──┬── Abort
//	            └── Commit ─────────────────┴── Commit ──▶ seen from a timestamp on
//	                                                └── RollbackTo before it ──▶ never was
//
// Two open units never change the same document or catalog entry: the second is refused
// with [ErrWriteConflict], and so is a unit that changes one that was committed after its
// snapshot. A change to the catalog conflicts with all writes of other open units to the
// collection, and vice versa: no operation waits for a lock.
//
// # Versions
//
// A replaced version is kept while a view could read it: until the version after it
// is at or before the stable timestamp minus the history window, and no pin and no
// open unit reads an older time. Commits after the stable timestamp are also kept in a
// journal, from which a rollback undoes them. So memory is proportional to the data
// plus the writes of the last seconds.
//
// The database local has no versions: its newest state is visible at every time, and
// a rollback does not change it.
//
// # Trust
//
// Documents and specifications are valid BSON, which the caller has checked. Insert,
// Update and Append copy them. Collection options and index specifications are in the
// form that listCollections and listIndexes return.
// Indexes are constraints only: unique keys, arrays in parallel, hashed arrays.
// Text, geo and wildcard indexes constrain nothing here.
package storage
