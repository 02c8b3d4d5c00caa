// Package catalog caches the properties of the target's collections that the applier needs:
// whether a collection exists, whether the order of operations matters beyond a single _id,
// and whether it can be written in a transaction.
//
// Reading them for every batch would cost a round trip each. Only the link changes these
// collections, so they are read once, a database at a time, and again after each change
// (see [Catalog.Refresh]).
//
//	Load(db, …) ──▶ known ──Get──▶ answered from memory
//	                  │  ▲
//	        Refresh ──┘  └── listCollections and listIndexes
//
// If Refresh fails to read a namespace, the namespace is unknown until the next Get
// reads it: the cache is never older than the last call of Refresh.
//
// The package trusts that collections change only by commands after which Refresh is
// called.
package catalog
