// Package write has insert, update, delete and findAndModify.
//
// A command is carried out by a writer, in sections: some statements under the
// store's lock, each of them one oplog entry, or part of one. It knows retryable
// writes: a statement that was executed before is answered from its oplog entry.
// Inserts into time-series collections go into buckets.
package write
