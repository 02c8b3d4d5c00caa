// Package oplog is the vocabulary of a replica set's oplog: what an entry says
// and how two points of the log compare.
//
// An [Entry] is parsed once, in a single pass, from the bytes that the source
// sent. It is a set of views into them: nothing of the payload is copied or
// decoded, so field order and types reach the target as they were. Whoever
// parses hands over the buffer: it must stay unchanged for as long as an entry,
// or anything taken out of one, is in use.
//
// Parsing is strict where a mistake would lose data: an unknown operation or
// command, another format version, a missing or mistyped field is an
// [*EntryError] that names the optime. Fields that are not known are ignored, as
// the server's own readers do. The payload of a command is read on demand, by
// the method of its name ([Op.Create], [Op.ApplyOps] and so on).
//
// Transactions that span entries are put together by package oplog/txn, and
// updates are applied, computed and compiled by package oplog/update.
//
// Layout of the values: an [Op] is one operation on one namespace, and is what
// an applier applies. An [Entry] is an Op with a place in the log. The elements
// of an applyOps are Ops too, with the optime of the entry that holds them.
package oplog
