// Package syncsource chooses the member of a replica set whose oplog is read, as a
// secondary chooses its sync source.
//
// Members differ: one lags by minutes, one is hidden and serves backups, one has been
// rolled back, and the nearest host may belong to another set. A follower of the wrong
// member lags, or mistakes a member that does not have its position yet for a rollback.
//
//	              View                      Choice                Source
//	Watcher ──▶ of all members ──▶ Choose ──▶ a member ──▶ probes ──▶ to read
//	   ▲                            ▲                        │
//	   └ hello, every 2 s           └──── Denylist ◀─────────┘ Resolver
//
// [Choose], and the functions that decide whether to leave the current source, are
// pure: they do no I/O and read no clock; the [Query] has the time. They apply
// the server's rules in the server's order, and one of their own (see cutOff), and give an operator-readable reason for
// every member that is not chosen.
//
// [Watcher] updates the [View]: it polls each member itself, hidden ones too if
// the configuration can be read. A member's state here:
//
//	not asked ──▶ up (its state, optimes, ping) ◀──▶ at fault (down, another set…)
//
// [Resolver] combines both. It reads the oldest entry of the chosen member, and denies
// the member for a while if it cannot serve. While there is a source it reports whether to leave it.
//
// The package trusts what a member reports about itself, and that the members can be
// reached under the host names in the configuration. Reports of one member about
// another are used only to discover members.
package syncsource
