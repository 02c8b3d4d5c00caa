// Package guard finds foreign writes: those to mirrored namespaces of the target that the link
// has not made. Nothing else may write there. Without the guard such a write would show only at
// cutover, if at all.
//
//	target's oplog ──▶ [Guard.Run], without the flushes of links ──▶ [Watch.See] ──▶ foreign writes
//	                                                                    │
//	commands of the link ──▶ [Gate] ── announced in the metadata ───────┘
//
// # The link's own writes
//
//   - An entry whose session is one of the link's, or of one of its parts (package resync).
//     Lanes write documents in sessions only, in transactions or as retryable writes, and their
//     ids depend on the link and its instance alone: they are the same in every process and
//     term. A session's other writes cannot be taken for them.
//   - A command (DDL) is logged without a session. So the link announces each that it sends
//     outside of a transaction: a document in the metadata collection commands, before it sends the
//     command, which it deletes once the target has answered. The target's oplog has both in
//     the order in which they took effect, so an entry of a command is the link's own if one is
//     announced there that logs such an entry for that collection. If the outcome is not known
//     the announcement stays, because the target may execute the command later.
//   - A delete by the server itself, without a session: of expired documents, and of the oldest
//     ones of a capped collection.
//
// Every other write to a mirrored namespace is foreign. Each is found in the target's oplog,
// whichever process sent it, and whether or not a process of the link was running.
//
// # Where it starts
//
// [State] is stored in the metadata with the entry up to which the oplog was examined. The next
// leader continues there. If the target's oplog begins later, the time between was not watched: it
// is a [Gap], which is logged and shown. Commands before [State.CommandsFrom] are not judged: a
// process that did not announce them may have sent them, one of an earlier release, or with the
// guard off.
//
// # Limits
//
//   - A command of another client on a collection while the link executes one of the same kind on
//     it, or has sent one whose outcome is unknown.
//   - A delete without a session from a collection that is capped or has an index that expires
//     on the target. The target's indexes do not expire documents before cutover.
//   - Changes of the target's users, of config and local, and of the metadata: they are not
//     judged.
//   - A write that a failover of the target has rolled back: it has no effect.
package guard
