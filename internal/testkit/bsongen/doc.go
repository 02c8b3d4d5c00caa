// Package bsongen draws random BSON documents, changes to them and deltas, for
// property tests.
//
// Difficult cases are frequent: every BSON type including the deprecated ones, field
// names that look like paths, operators, array indexes or sections of a delta, arrays
// of arrays, values that are large enough to be changed by a nested delta. Names come
// from a small pool, so that independently drawn documents and deltas share fields.
//
// It also parses documents and values from the notation of the tests.
//
// Only tests import it.
package bsongen
