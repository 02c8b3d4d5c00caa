// Package memstore is a catalog and its collections in memory, to which oplog
// entries are applied the way a member of the replica set applies them.
//
// It is the tests' oracle: it has the data that a target must have after an entry.
// So it is slow and obvious. Documents are raw BSON, byte for byte as in the log;
// collections are found by UUID first and by name second, as in the server; and
// operations that the server ignores are counted.
//
// A [Store] takes single operations, in one of two modes:
//
//	Steady       the data is exactly what the log was written on
//	InitialSync  the data may be newer than the log, as in a copy that was taken
//	             during writes: operations on missing documents and collections
//	             are ignored, collections in the way are moved, and later
//	             entries correct the result
//
// An [Applier] takes whole entries and assembles transactions. A [State] is a
// store's contents, for comparison.
//
// An operation is applied completely or not at all. A transaction is applied
// operation by operation: after an error in the middle the ones before it stay.
//
// Documents are not copied: they are views into the entries, whose bytes must stay
// unchanged and are kept in memory. No type is safe for concurrent use. [Store.Clone]
// is cheap, and the clone shares documents and collators with its origin.
//
// Differences from a server: _ids under an unsupported collation compare by bytes,
// which [Store.Uncollated] reports; unique indexes are not enforced, as in a server
// that applies a log; indexes are specifications only; and a prepared transaction is
// applied when it commits.
package memstore
