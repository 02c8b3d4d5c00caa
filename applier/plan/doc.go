// Package plan turns what a writer has to apply into the commands that it sends:
// runs on one document are reduced to their net effect where that is provably
// the same, deltas become updates that a client may send, and what is left is
// grouped by namespace and kind.
//
// A writer wants few commands, large ones, and cheap statements in them. The log
// has one operation after the other. In between lies this:
//
//	operations ──▶ runs on one _id ──▶ net effects ──▶ statements ──▶ Writes
//	               in the log's order   what is         compiled      by namespace,
//	               of each _id          superseded,     one by one    round and kind
//	                                    folded together
//
// # What keeps its order
//
// Operations on one _id, always; and in a namespace that is Ordered all of them.
// Operations on different _ids of any other namespace reach the same documents
// in whichever order they are sent. Two _ids that may be equal to the server are
// one here (oplog.AppendIDKey). They are reduced together only if their bytes are
// the same, since the key also meets for some that differ.
//
// The statements of a namespace are sent in rounds, each of which has inserts,
// then updates, then deletes. What has to come after a statement of a later kind
// is of the next round.
//
// # What is reduced
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
// A delta is folded into another one only in ModeExact, where each meets the
// document that it was logged for. Upserts stand for inserts that may meet a
// document: those of a moving copy, and of an applyOps. What must have found
// something (an insert no document, an update one) is still asked for that
// afterwards, but for what a delete or upsert ends. A sequence that no log can
// have, such as an update after a delete in ModeExact, is sent as it is: the
// target's answer is the report.
//
// # What an update is sent as
//
// $set and $unset where they provably make the same document; the same, guarded
// by a filter for the absence of what is inserted; $_internalApplyOplogUpdate
// where the target has it; an aggregation pipeline; and what has no form at all is
// left to be read, changed and written (Modify).
//
// # What is trusted
//
// The operations are those of a log that was parsed, in its order. In ModeExact
// the target has what the log's operations were logged for. A document of which
// _id is not the first field is stored with _id first, which is what a server does
// with whatever a client sends.
package plan
