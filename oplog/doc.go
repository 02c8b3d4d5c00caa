// Package oplog has the types of a replica set's oplog: entries, operations and
// optimes.
//
// An [Entry] is parsed once, in a single pass, from the bytes that the source
// sent. It is a set of views into them: the payload is neither copied nor
// decoded, so field order and types reach the target unchanged. The caller must
// not change the buffer while an entry, or any part of one, is in use.
//
// Parsing is strict where a mistake would lose data: an unknown operation or
// command, another format version, a missing or mistyped field is an
// [*EntryError] that names the optime. Unknown fields are ignored, as in the
// server. The payload of a command is parsed on demand, by the method of its
// name ([Op.Create], [Op.ApplyOps] and so on).
//
// Package oplog/txn assembles transactions that span entries; package
// oplog/update applies, computes and compiles updates.
//
// An [Op] is one operation on one namespace, the unit that an applier applies.
// An [Entry] is an Op with a place in the log. The elements of an applyOps are
// Ops too, with the optime of the entry that contains them.
package oplog
