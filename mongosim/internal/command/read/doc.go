// Package read has the commands that return data: find, getMore, aggregate, count,
// distinct, explain, and those that list collections, indexes and statistics.
//
//	first argument ─▶ Target ─▶ query: filter, hint, sort ─▶ scan ─▶ feed ─▶ cursor ─▶ batches
//
// A scan goes along the record ids, along _id, or along an index that a hint names;
// the feed of a cursor sorts, projects or runs a pipeline. Between two batches a
// cursor keeps its place in the scan, not the store's lock.
package read
