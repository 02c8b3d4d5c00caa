// Package traffic writes to a cluster with many concurrent clients: random data, with
// every kind of operation that must be mirrored.
//
//	clients   inserts, updates of all kinds, replacements, deletes, of one document
//	          and of many; findAndModify; a few documents that all clients write;
//	          capped collections, collations, time series
//	          transactions over several collections, small and large, some aborted
//	keeper    creates, drops, renames and changes collections, indexes and views,
//	          while the clients write to some of them
//	rare      only if asked for: prepared transactions; applyOps, nested ones too; exchanges
//	          of unique values; clustered collections; a collMod after the other; documents
//	          that expire; $out and $merge; deleted measurements; users and roles. Check
//	          knows what holds of these in any mirror
//	wide      with rare: _ids and values of all types, indexes of all kinds, all options of
//	          collections, arrays that grow, names and documents as long as they may be,
//	          images of documents, more time series
//
// A seed decides the sequence of operations of each client; their results depend on the
// other clients too. A client survives failovers: it retries an operation with unknown
// outcome, or continues with the next. Errors that are expected of concurrent clients are
// counted; any other error ends the run, because it is a bug in this package.
//
// Documents are written by their _id only, and none is left to expire: after Run has
// returned, no write follows.
package traffic
