// Package memstore is a catalog and its collections in memory, to which oplog
// entries are applied the way a member of the replica set applies them.
//
// It is an oracle: what a target must hold after an entry can be looked up here.
// So it is slow and obvious. Documents are raw BSON and come out byte for byte
// as the log has them; collections are found by UUID first and by name second,
// as in the server; and what the server tolerates is counted, not hidden.
//
// A [Store] takes single operations, in one of two modes:
//
//	Steady       the data is exactly what the log was written on
//	InitialSync  the data may be newer than the log, as in a copy that was taken
//	             while writes went on: what is missing is passed over, what is
//	             in the way is moved, and the end of the log puts it right
//
// An [Applier] takes whole entries and puts transactions together first. A
// [State] is a store's contents to be compared with another's.
//
// An operation is applied completely or not at all. A transaction is applied
// operation by operation: after an error in the middle the ones before it stay.
//
// Nothing is copied on the way in: documents are views into the entries that
// brought them, whose bytes have to stay unchanged, and which they keep in
// memory. Nothing is safe for concurrent use. [Store.Clone] is cheap, and the
// clone shares documents, and collators, with its origin.
//
// What differs from a server: _ids under a collation that cannot be followed here
// compare by bytes, which [Store.Uncollated] tells; unique indexes are not
// enforced, which the server does not do either while it applies a log; indexes
// are specs and nothing else; and a prepared transaction is applied when it
// commits.
package memstore
