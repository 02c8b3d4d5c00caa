// Package read has the commands that return data: find, getMore, aggregate, count,
// distinct, and those that list collections, indexes and statistics. It refuses explain.
//
//	first argument ─▶ Target ─▶ query: filter, hint, sort ─▶ scan ─▶ feed ─▶ cursor ─▶ batches
//
// A scan is in the order of record ids, of _id, or of an index that a hint names;
// the feed of a cursor sorts, projects or runs a pipeline. Between two batches a
// cursor keeps its position in the scan, but not the store's lock.
package read
