// Package workload says what is written when something is measured: a mix of
// operations as a value, made from a seed, so that the same work can be done again.
//
// One operation exists in the forms that the runs need: as an entry of the log, as
// a server would have written it, and as what an ordinary client sends for it.
//
//	Workload ──New──▶ Generator ──Collections──▶ what is there before
//	    │                 └──────Next──────────▶ operations, as a client sends them
//	    └──NewLog──▶ Log ────────Next──────────▶ the same operations, as entries
//
// The forms are the same work, to the byte: a modifier makes of a document what its
// delta makes of it, a server that carries it out logs that delta, and no operation
// meets a document that is not there, or one that is there already. So a log can be
// applied strictly, and what it leaves can be compared.
//
// What a generator keeps is eight bytes for each document that can be chosen, and
// nothing where documents are met once: documents are made from their numbers.
//
// A recorded oplog can stand in for all this. It is read in blocks, and what it says
// of documents that are not in it is taken for granted.
package workload
