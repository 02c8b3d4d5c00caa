// Package syncsource chooses the member of a replica set whose oplog is read, the
// way a secondary chooses whom it syncs from.
//
// Any member would do if all were near, up and current. They are not: one lags
// by minutes, one is hidden and serves backups, one has been rolled back, and the
// nearest may be none of the set at all. Who reads the wrong one falls behind or,
// worse, takes a member that lacks the entry it stopped at for a rollback.
//
//	              View                      Choice                Source
//	Watcher ──▶ of all members ──▶ Choose ──▶ a member ──▶ probes ──▶ to read
//	   ▲                            ▲                        │
//	   └ hello, every 2 s           └──── Denylist ◀─────────┘ Resolver
//
// [Choose], [ShouldChange], [ShouldChangeOnError] and [PingShouldChange] are pure:
// they do no I/O and know no clock; the time comes in with the [Query]. They follow
// the server's rules in the server's order, and for every member that is not
// chosen they say why, in words for an operator.
//
// [Watcher] keeps the [View]: it asks each member itself, hidden ones too where
// the configuration may be read. A member's state here:
//
//	not asked ──▶ up (its state, optimes, ping) ◀──▶ at fault (down, another set…)
//
// [Resolver] puts both together. It asks the chosen member for its oldest entry,
// and for an entry that has to be there, and denies the member for a while if it
// cannot serve. While there is a source it says whether to leave it.
//
// What is trusted: that a member tells the truth about itself, and that hosts of
// the configuration can be reached under the names that it has for us. What a
// member tells of another one is used for nothing but to find out whom to ask.
package syncsource
