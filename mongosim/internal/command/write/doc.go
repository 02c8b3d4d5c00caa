// Package write has insert, update, delete and findAndModify.
//
// A writer executes a command in sections: some statements under the store's lock, each
// of them one oplog entry, or part of one. Retryable writes are supported: a statement
// that was executed before is answered from its oplog entry.
// Inserts into time-series collections go into buckets.
package write
