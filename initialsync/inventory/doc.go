// Package inventory lists the collections and views to copy, under the names that they had
// when the copy started.
//
// # Names
//
// Collections are listed some time after Begin, the entry after which the log is
// applied. By then they may have been renamed. The log's commands use the names at
// their own time, so the log could not be applied to a copy with the listed names: after
// a and b were swapped, the log's earlier writes to a would go to the wrong collection.
// So each collection gets the name that it had at Begin: the old name in the first rename
// of its UUID after Begin, or the listed name if there is no rename.
//
//	after Begin, by the log               the listed collection is
//	nothing, or later changes of it        copied, as it is listed
//	renamed (the first time from N)        copied as N
//	created (in a transaction, too)        not copied: the log creates and fills it
//	dropped                                missing: the log's drop has no effect
//
// A transaction creates a collection when it commits. If it commits after Begin, the
// entry with the create may be before Begin, so the log is read from the transaction's
// first entry on.
//
// To find the rename of a collection that is listed with its new name, the log must
// have been read up to the time of the listing: up to the newest entry, read after the
// lists.
//
// Views have no UUID. A listed view is created with the listed definition; the log's
// create of it then finds it. But if a collection had the name of the view after Begin,
// the view was created later, and only the log creates it: otherwise the log's writes to
// the collection would find a view.
//
// # Exclusions
//
//   - Namespaces that Scope does not mirror, by the names at Begin; local, config, and
//     admin except for users and roles if Scope has those; system.profile.
//   - Collections system.views: they are listed as [Inventory.Views].
//   - Indexes that are still being built: their commit is in the log. Servers report
//     them as such since 4.2.
//   - Views whose definitions in system.views are invalid: they are named
//     ([Inventory.Invalid]). While there is one, servers refuse to list the database with
//     listCollections, and the definitions are read from system.views instead.
//
// Anything else that is unknown (a type, a collection without UUID) is an error.
//
// # Operations
//
// Collections, views and indexes are returned as operations of the log ([CreateOp] and
// others), so that package applier/ddl handles a copy like the log: deferred index
// options, names on the target, and time series.
package inventory
