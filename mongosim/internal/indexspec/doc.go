// Package indexspec checks and completes the specifications of indexes, and the
// collations that they and collections have, as createIndexes does.
//
//	given by a client ──▶ Normalize ──▶ as stored ──▶ Missing ──▶ those to build
//
// [Normalize] refuses the same specifications as the server, with its code and message, and returns
// the specification with the fields in the order in which the server stores and logs
// them. [Missing] compares such specifications with the indexes of a collection.
//
// It trusts that documents are valid BSON.
package indexspec

// Version is a server version, major and minor.
type Version [2]int

// AtLeast reports whether the version is this one or a later one.
func (v Version) atLeast(major, minor int) bool {
	return v[0] > major || v[0] == major && v[1] >= minor
}
