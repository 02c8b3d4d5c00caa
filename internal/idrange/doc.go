// Package idrange divides a collection into parts by _id, each of which one filter selects.
//
// A filter compares values of one type bracket only (numbers with numbers, strings with
// strings), while an index has the values of all types. So a part of a collection is a list of
// pieces: each is a bracket, or a part of one from a value to another, or all _ids that are in
// no bracket. The pieces of all parts together have every _id exactly once, whatever the values
// at which the collection was cut.
//
// A scan of a piece in the order of the index can resume after the last _id that it has seen,
// but for the piece of values in no bracket.
//
// With a collation the same holds: filters, the index and the samples at which it is cut use
// the collection's own.
package idrange
