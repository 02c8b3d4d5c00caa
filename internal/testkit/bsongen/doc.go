// Package bsongen draws random BSON documents, changes to them and deltas, for
// property tests.
//
// What it draws leans towards trouble: every BSON type including the deprecated
// ones, field names that look like paths, operators, array indexes or sections
// of a delta, arrays of arrays, values that are large enough for a delta inside
// them to pay. Names come from a small pool, so that documents and deltas that
// are drawn apart still meet.
//
// It also writes documents and values out of what tests spell them in.
//
// It is for tests only. Nothing but tests imports it.
package bsongen
