// Package workload generates the operations that measurements write: a mix described by
// a value and generated from a seed, so that the same work can be repeated.
//
// Each operation exists in two forms: as an oplog entry, as a server would have written
// it, and as the command that an ordinary client sends for it.
//
//	Workload ──New──▶ Generator ──Collections──▶ the initial documents
//	    │                 └──────Next──────────▶ operations, as a client sends them
//	    └──NewLog──▶ Log ────────Next──────────▶ the same operations, as entries
//
// Both forms have the same effect, to the byte: a modifier changes a document as its
// delta does, and a server that runs the modifier logs that delta. No operation updates
// or deletes a document that does not exist, or inserts one that does. So a log can be
// applied strictly, and the results can be compared.
//
// A generator keeps eight bytes for each document that it may choose again, and nothing
// for the others: documents are generated from their numbers.
//
// A recorded oplog can be used instead. It is read in blocks. Documents that it changes
// and does not insert are assumed to exist.
package workload
