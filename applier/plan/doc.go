// Package plan turns the operations of a flush into commands. It reduces the operations on
// one document to their net effect where that is provably equivalent, turns deltas into
// updates that a client may send, and groups the statements by namespace and kind.
//
//	operations ──▶ runs on one _id ──▶ net effects ──▶ statements ──▶ Writes
//	               in the log's order   superseded     compiled      by namespace,
//	               of each _id          ones folded    one by one    round and kind
//
// # Order
//
// Operations on one _id keep their order, and so do all operations of a namespace that
// is Ordered. Operations on different _ids of other namespaces commute. Two _ids that the
// server may consider equal count as one (oplog.AppendIDKey); they are reduced together
// only if their bytes are equal, because some that differ have the same key.
//
// The statements of a namespace are sent in rounds of inserts, then updates, then
// deletes. An operation that must follow a statement of a later kind belongs to the next round.
//
// # Reduction
//
//	insert, updates              insert of the result
//	insert, ..., delete          nothing
//	upsert, updates              upsert of the result
//	anything, replacement        replacement
//	replacement, updates         replacement by the result
//	delta, delta                 one delta (update.Folder, Compose), or both in order
//	anything, delete             delete
//	delete, insert               upsert
//
// Deltas are folded in ModeExact only, where each meets the document that it was logged
// for. Inserts become upserts if a document may exist already: in ModeCopied, and those
// of an applyOps. The expected effect (an insert found no document, an update found one)
// is still checked afterwards, unless the run ends with a delete or upsert. A sequence
// that no log can have, such as an update after a delete in ModeExact, is sent unchanged,
// and the target's reply reports the divergence.
//
// # Updates
//
// In order of preference: $set and $unset where they provably make the same document;
// the same, with a filter that requires the inserted fields to be absent;
// $_internalApplyOplogUpdate where the target has it; an aggregation pipeline; reading,
// changing and writing the document (Modify).
//
// Statements that differ in the _id alone, as an updateMany logs them, become one with a
// list of _ids and multi: true. Its place is that of the first of them, and none that
// follows another statement on its document is moved. The reply's n still shows whether
// every document was found; if not, the caller repeats the operations with One.
//
// # Trust
//
// The operations are those of a parsed log, in its order. In ModeExact the target has
// the documents that they were logged for. A document whose _id is not its first field is
// stored with _id first, as a server does with any document of a client.
package plan
