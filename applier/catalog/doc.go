// Package catalog caches the target's collections while a link writes to it: which ones
// exist, and which of them need care.
//
// In some collections the order of operations matters beyond a single _id, and some
// cannot be written to in a transaction. Asking the target for every batch would cost a
// round trip each. Nobody else changes these collections, so they are read once, a
// database at a time, and again after each change (see [Catalog.Refresh]).
//
//	Load(db, …) ──▶ known ──Get──▶ answered from memory
//	                  │  ▲
//	        Refresh ──┘  └── listCollections and listIndexes
//
// If Refresh fails to read a namespace, the namespace is unknown until the next Get
// reads it: an answer is never older than the last change that was announced.
//
// The package trusts that collections change only by commands after which Refresh is
// called, and it trusts the target's lists.
package catalog
