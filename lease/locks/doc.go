// Package locks has locks that many processes share through a database, for use in any
// program: [Manager] for slow ones, which an operator's job has for minutes or days; [Elect] for
// functions that run on one process at a time; [Role] for leaders and followers.
//
// # The problem
//
// A process that has a lock can die, or be suspended for longer than other processes wait, and write
// when it resumes. Clocks of two machines differ. A reply can be lost, so that no process knows
// which one has the lock. A database that elects another primary can forget a lock that it granted.
//
// # Records
//
// A [Store] keeps one record for each name. All changes are one compare-and-set in the store,
// by the store's clock, and last over elections. Each acquisition has an ID of its own, and
// raises the record's term by one: the fencing token. The term never goes back, also when the
// lock is released. Package mongostore has the store for a MongoDB replica set, package sqlstore
// those for PostgreSQL, MySQL and MariaDB; package lockstest has the contract as tests.
//
//	         Acquire                         Release
//	free ───────────────▶ locked, ID, term+1 ───────▶ free
//	                        │ ▲
//	                        └─┘ Acquire that names this ID as Overtake, and its renewals: another ID, term+1
//
// # Slow locks
//
// A Manager pings: every 30 s it records in the store that its process is alive. A lock has no
// end of its own. Another process overtakes it only if, for 15 min without a break, neither
// the lock's ID nor the holder's ping has changed and the store has had no election. The time is
// counted by the store's clock and by that of the process that waits. It overtakes exactly the
// acquisition that it saw. A claim whose reply comes after a break in the pings has not got the lock,
// whatever the reply says: it is unlocked, and sent again with another ID.
//
// A [Lock] has a context. It ends when the process could not ping for so long that others may
// soon overtake it, counted from when the last successful ping was sent; or when the pinger
// finds that the store has the lock no longer. As a list may lag after an election, a write
// confirms that.
//
// # Locks that end
//
// [Elect.Lock] runs a function with a lock that ends 10 s after it was last renewed, by the
// store's clock; it is renewed every 2 s, each lock by itself, whether the renewal before has
// been answered or not. The function's context ends 2 s before that, counted on this process's
// clocks from when the last successful renewal was sent; or when the function has returned, before
// the lock is released. Functions that were given locks within it are waited for; other goroutines
// that it leaves running are not. [Token] and [Check] are for use in the function. A [Role] is
// such a lock whose function is the leader's; the other processes are told which one leads.
//
// # Properties
//
//   - Mutual exclusion: in the store at most one acquisition has a lock, always. In the processes, the
//     context of a lock ends before another process gets it, by the Margin: a fifth of the TTL; 30 s of
//     15 min for a slow lock. That assumes: (1) Clocks may differ, but
//     run at the same speed up to the Margin: the process's own and the store's, for a slow lock
//     also that of the process that waits. (2) For a lock that ends: the store's clock is not
//     set forward, and no primary is elected whose clock is ahead of the one before, by more than the
//     Margin, while the lock is held. Otherwise it is free early, and two may have it until the first one's
//     next renewal or the end of its context. A slow lock does not depend on that. (3) The store keeps its contract. (4) No operator
//     releases the lock by hand: otherwise two may have it until the first one finds out, a slow one with
//     the next ping's round, one that ends with its next renewal.
//   - Contexts: a process must stop with the context. After a suspension the context is over, and [Lock.Err]
//     and [Check] report that before a timer has fired. Only fencing covers a suspension between such a check
//     and the write that follows it, and a command that was sent before.
//   - Liveness: while the store is up, a lock that ends goes to one of the processes that wait for it:
//     within its TTL and two intervals after its process is gone, within an interval after its release. A slow lock whose process is gone is free 15 min later, plus a ping and a retry; at once if it was
//     closed. An election of the store restarts that time. The store's clock counts for locks
//     that end: where a new primary's is ahead, they end earlier, with it.
//   - Fault tolerance: whether the reply to an acquisition, an unlock or a ping was lost before or
//     after it was executed makes no difference. What could not be unlocked is tried again
//     until that is confirmed. What a late command locks is found by the next ping's round, and unlocked.
//     While the store is away, locks are kept until their contexts end.
//   - Fencing: a lock protects what checks its term, and nothing else. What the lock is for must
//     refuse terms older than the newest that it has seen.
//   - Fairness: waiters are not queued; each tries every 500 ms on average, or at least once in an
//     interval. A process that has unlocked a lock and wants it again waits for as long as each of them needs to try,
//     if the store answers at once. That does not hold for one that does not wait itself (Wait 0, TryLock): one
//     that polls so can keep others from a lock; nor for callers of the process that wait for it already. Which of them gets
//     it is chance.
//   - Re-entrancy: [Elect.Lock] with the context of a function that has the lock runs the other
//     one at once. A second slow Lock of the same name waits for the first, unless [Wants.Again] says
//     that this acquisition is the caller's own, from an earlier life of the process.
//   - Cost: a lock and its unlock are one write each. From its first lock on, a process costs
//     two writes and two reads per minute, however many locks it has. Waiting for a lock costs
//     two commands per second, which write nothing. A lock that ends costs 30 writes per minute,
//     and waiting for it 45 commands without a write on average. A process that ended without
//     [Manager.Close] leaves one document with its last ping. Other processes remove it a week later, if
//     the store is a [Sweeper] and no lock names the process: each looks once a day.
package locks
