// Package transcript tests that the embedded replica set answers like a real one: it
// sends the recorded commands of a recording to a set of one member and compares
// replies, oplog and data.
//
//	commands.jsonl ──▶ outgoing ──TCP──▶ member ──▶ each reply, with the recorded one
//	before/ ──────────▶ loaded              │
//	                                        ├─────▶ its oplog, with oplog.bson
//	                                        └─────▶ its data, with after/
//
// # How a recording is replayed
//
// Commands go one after the other, in the order of the file, over one connection.
// They are sent as they were recorded, except that values of the recorded server
// are replaced by those of this one: the cluster time and afterClusterTime, cursor
// ids, the commitTimestamp of a prepared transaction. The UUIDs of collections and
// index builds are given out in the order of the recorded log, so that whatever
// depends on their order comes out the same. After a step-down the next command
// waits for a primary, as a driver does.
//
// A command that was too large for the transcript is put together again from the
// log: see rebuilder. Data of before/ is loaded, except for collections
// that the log creates: those were copied later.
//
// # Comparison
//
// Everything: the fields of replies and entries, their order and types. What
// cannot be the same in two runs is compared by a named rule; rules.go lists
// them. Most of them do not let a difference pass, but ask that it be consistent:
// a recorded optime, for instance, must stand for one of ours wherever it occurs,
// and both must be of the same entry of the log.
package transcript
