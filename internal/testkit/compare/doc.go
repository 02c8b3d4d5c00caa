// Package compare reports whether one cluster has the same data as another one, or as
// a recording.
//
// A target that mirrors a source has the same collections, options, indexes and
// documents, byte for byte. What it keeps back until cutover (package
// applier/ddl) is put over what it shows first. Left out are the databases admin,
// config and local, and that of the link's own records.
//
//	existence and type   of every collection and view
//	options              without UUIDs; in any order, numbers by value
//	indexes              by name, in any order; fields in any order, numbers by value
//	documents            by _id; those of capped collections in natural order
//
// # What it needs
//
// Memory does not grow with the data: documents are read in order of _id on both
// sides and merged. In collections with a collation, where the two sides might
// sort differently, documents wait for their like; see [Options.PendingBytes].
//
// Nothing is locked and no snapshot is kept: nothing must write to either side, or a
// difference may be one of time. It trusts that a server returns documents in the
// order of _id that it is asked for.
package compare
