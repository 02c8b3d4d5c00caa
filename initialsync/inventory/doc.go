// Package inventory lists what there is to copy, under the names that it had when the
// copy began.
//
// # Names
//
// A copy is listed some time after Begin, the entry after which the log is
// applied to it. By then collections may have other names. The log's commands
// name collections as they were called at their time, so a copy under the names
// of the listing would be one to which the log does not apply: after a and b were
// swapped, the log's writes to a would go to the collection that was b. So each
// collection gets the name that it had at Begin, which the log tells: it is what
// the first rename of its UUID after Begin renames it from, and without one, the
// name that is listed.
//
//	after Begin, by the log               what is listed is
//	nothing, or later changes of it        copied, as it is listed
//	renamed (the first time from N)        copied as N
//	created (in a transaction, too)        left to the log, which fills it as well
//	dropped                                not listed, or gone when it is asked for:
//	                                       the log has nothing to drop then
//
// A transaction creates a collection when it commits. One that commits after Begin may
// have the entry with its create before Begin; so the log is read from the
// transaction's first entry on.
//
// To find the rename of a collection that is listed with its new name, the log must
// have been read up to the time of the listing. That is the time of the newest entry,
// read after the lists.
//
// Views have no UUID. A listed view is created as it is listed; the log's create of it
// finds it there. But if a collection had the name of the view after Begin, the view
// was created after that, and the log creates it: if it were created now, the log's
// writes to the collection would meet a view.
//
// # What is left out
//
// What Scope does not mirror, by the names at Begin. Whatever is in local and
// config, and all of admin but users and roles where Scope has those. Profiles.
// Collections system.views: they are listed as [Inventory.Views]. Indexes that are
// still being built: their commit comes with the log. Servers say which those are
// since 4.2; one that does not know the question shows them as if they were
// finished.
//
// Views that the source itself cannot use, because what was written into system.views
// is no valid definition: they are named ([Inventory.Invalid]). While there is one,
// servers refuse to list the database in the usual way, and the definitions are read
// instead.
//
// Anything else that is listed and not understood (a type, a collection without
// UUID) is an error.
//
// # Operations
//
// What the target gets is expressed as operations of the log ([CreateOp] and the
// others), so that package applier/ddl treats a copy like the log: which index options
// are deferred, which name a collection gets, and what a time series is.
package inventory
