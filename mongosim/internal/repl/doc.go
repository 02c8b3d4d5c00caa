// Package repl makes a member of a replica set out of a store: its state and
// term, heartbeats and elections, the pull of a source's oplog, the commit point,
// rollback, and waiting for write concerns.
//
// A Node is one member. It answers the commands of other members (Heartbeat,
// RequestVotes, UpdatePosition) and those of clients (Initiate, Reconfig, StepDown,
// StepUp, Freeze, Status) at any time. Run starts the goroutines of its own
// activity:
//
//	heartbeats   one loop per other member: state, optimes, terms, configurations
//	elections    the election timer, takeovers, and the primary's own lease
//	data         the only one that changes the member's data:
//	             initial sync, pull, rollback, catch-up and the first entry of a term
//	reports      optimes to the sync source, as soon as they change
//	journal      applied optimes become durable
//	noops        a no-op entry when there are no writes, if configured
//
// The states of a member:
//
//	STARTUP ──configuration──▶ STARTUP2 ──initial sync──▶ SECONDARY ◀──▶ ROLLBACK
//	                              (no data)                 │    ▲
//	                                                 elected│    │higher term, no majority, asked to
//	                                                        ▼    │
//	                                                      PRIMARY: catches up, then is writable
//
// RECOVERING is a member that cannot continue: its source no longer has the entries
// that it needs, or a rollback would undo majority-committed entries.
//
// # Guarantees
//
// A member votes once in a term, for a candidate whose newest entry is not older than
// its own, and the vote is stored before the reply is sent. A primary counts only
// entries of its own term towards the commit point. So an entry at or before the
// commit point of any member is on every later primary. The store's stable
// timestamp is the commit point, never beyond what the member has applied.
//
// # Trust
//
// A Node trusts the members of its configuration, as the server does, and a monotonic
// clock. Commands that are not valid BSON, lack fields or have fields of the wrong type
// are refused; none of them causes a panic.
//
// # Simplifications
//
// New voters count at once (there is no newlyAdded), a source is not changed for
// a better ping, and an unprepared transaction that a failover cut off in the
// middle of its chain is not logged as aborted. Time in which the process did not run
// does not count towards the election timeout: all members of a set in one process
// stand still together.
package repl
