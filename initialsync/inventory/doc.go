// Package inventory finds out what is to be copied, and under which names it was
// there when the copy began.
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
// A transaction creates what it creates when it commits. The one that commits
// behind Begin may have the entry with its create before that; so the log is read
// from its first entry on.
//
// To find the rename of a collection that is listed with its new name, the log
// has to be there up to the time of the listing. That is the time of the newest
// entry as of then, read after the lists.
//
// Views have no UUID. One that is listed is made as it is listed; the log, when it
// comes to its making, finds it there. But where a collection had the name of the
// view after Begin, that view was made after it, and so the log makes it: were it
// made now, the log's writes to the collection would meet a view.
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
// Views that the source itself cannot use, as somebody wrote a definition into
// system.views that is none: they are named ([Inventory.Invalid]). As long as there is
// one, servers refuse to list the database in the usual way, and the definitions are
// read instead.
//
// Anything else that is listed and not understood (a type, a collection without
// UUID) is an error.
//
// # Operations
//
// What the target is given is said in the words of the log ([CreateOp] and the
// others), so that package applier/ddl decides for a copy what it decides for the
// log: what is held back, under which name it goes, and what a time series is.
package inventory
