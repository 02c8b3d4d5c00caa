// Package verify compares a target with its source: collections, options, indexes, views, and
// every document byte for byte.
//
//	catalogs ──▶ pairs ──▶ ranges ──▶ source ─┐
//	                                          ├─▶ merge ──▶ differences
//	                                  target ─┘
//
// # At which time
//
// Of a link, each range is read at a consistent cut: as of S on the source, and as of T on the
// target, at which the target is the source as of S. So writes in flight are never
// reported as differences, and nothing has to be read twice. Ranges are read one after the other, each at a cut that is
// newer than the one before, so that no cut has to be readable for longer than a server keeps
// its history. A range that takes longer continues, after the last document, at the next cut.
//
// Catalogs and capped collections cannot be read as of an earlier time, nor can collections
// that were created again since. There, what differs is read again: from the source, from the
// target after a later cut, and from the source once more. If the source has not changed in
// between, the target must be equal. It may have changed to and fro, so this is done several times.
// A primary that was just elected may not know yet what a majority has: such reads name the time of a cut.
//
// Without a link nothing may write to either side.
//
// A collection that is dropped, created or renamed meanwhile reads as empty as of a time at which
// it had another UUID. So differences are reported only after both sides still have the
// collections that were listed; otherwise that collection begins again. Servers from 7.0 on look names up as of the time of a read,
// so that a collection that had another name then, and has its own again, would read as empty: reads name its UUID, and are
// refused.
//
// # In which order
//
// Documents are read in the order of the index on _id, and merged by that order as package
// bsonorder knows it. The order of both sides is checked. If a server has another one, documents
// wait for their counterparts instead. They do so too in collections with a collation, whose order is
// not known here, and in capped collections, which are compared in the order of insertion. Waiting
// documents are limited (Config.Memory); beyond that the servers sort.
//
// # Trust
//
// Servers return what a read concern promises. A cut that Config.Cuts returns is
// majority-committed.
package verify
