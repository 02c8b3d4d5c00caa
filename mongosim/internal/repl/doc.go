// Package repl makes a member of a replica set out of a store: its state and
// term, heartbeats and elections, the pull of a source's oplog, the commit point,
// rollback, and waiting for write concerns.
//
// A Node is one member. It answers the commands of other members (Heartbeat,
// RequestVotes, UpdatePosition) and those of people (Initiate, Reconfig, StepDown,
// StepUp, Freeze, SyncFrom, Status) at any time; what it does by itself, it does
// in the goroutines of Run:
//
//	heartbeats   one loop per other member: state, optimes, terms, configurations
//	elections    the election timer, takeovers, and the primary's own lease
//	data         the only one that changes the member's data:
//	             initial sync, pull, rollback, catch-up and the first entry of a term
//	reports      optimes to the sync source, as soon as they change
//	journal      applied optimes become durable
//	noops        an entry when nobody writes, if asked for
//
// The states of a member:
//
//	STARTUP ──configuration──▶ STARTUP2 ──initial sync──▶ SECONDARY ◀──▶ ROLLBACK
//	                              (no data)                 │    ▲
//	                                                 elected│    │higher term, no majority, asked to
//	                                                        ▼    │
//	                                                      PRIMARY: catches up, then is writable
//
// RECOVERING is a member that cannot go on: its source no longer has what it
// needs, or a rollback would undo what a majority has.
//
// # Guarantees
//
// A member votes once in a term, for a candidate whose newest entry is not behind
// its own, and the vote is stored before it is told. A primary counts only
// entries of its own term towards the commit point. So an entry at or before the
// commit point of any member is on every later primary. The store's stable
// timestamp is the commit point, never beyond what the member has applied.
//
// # Trust
//
// A Node believes what members of its configuration say, as the server does, and
// that its clock's timers run forward. Commands that are no valid BSON, lack
// fields or have them of the wrong type are refused; nothing panics.
//
// # What is simpler than the server
//
// New voters count at once (there is no newlyAdded), a source is not changed for
// a better ping, and an unprepared transaction that a failover cut off in the
// middle of its chain is not logged as aborted.
package repl
