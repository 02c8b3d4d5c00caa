// Package compare reports whether one cluster has the same data as another one, or as
// a recording.
//
// A target that mirrors a source has the same collections, options, indexes and
// documents, byte for byte. Options that are deferred until cutover (package
// applier/ddl) are added to the target's before the comparison. The databases admin,
// config and local, and the metadata database, are left out.
//
//	existence and type   of every collection and view
//	options              without UUIDs; in any order, numbers by value
//	indexes              by name, in any order; fields in any order, numbers by value
//	documents            by _id; those of capped collections in natural order
//
// # Requirements
//
// Memory does not grow with the data: documents are read in order of _id on both
// sides and merged. In collections with a collation, where the two sides might
// sort differently, unmatched documents are buffered; see [Options.PendingBytes].
//
// The comparison takes no locks and reads at no snapshot, so nothing must write to either
// side while it runs. It trusts that servers return documents sorted by _id.
package compare
