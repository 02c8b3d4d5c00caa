// Package catalog is what is known of the target's collections while a link
// writes to it: which there are, and which of them need care.
//
// The order of operations matters beyond a single _id in some collections, and
// some cannot be written to in a transaction. To ask the target about that for
// every batch would cost a round trip each; nobody else changes these
// collections meanwhile, so they are read once, a database at a time, and read
// again by whoever changes them (see [Catalog.Refresh]).
//
//	Load(db, …) ──▶ known ──Get──▶ answered from memory
//	                  │  ▲
//	        Refresh ──┘  └── read anew: listCollections and listIndexes
//
// A namespace whose reading fails in Refresh counts as unknown from then on, and
// the next Get reads it: an answer is never older than the last change that was
// announced.
//
// The package trusts that what is said of a collection changes only by commands
// that Refresh is told of. It also trusts the target's own lists.
package catalog
