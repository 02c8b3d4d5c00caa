// Package continuous keeps a link verified while it runs, and reports whether it is.
//
//	                    ┌─ Rounds ─ verify.Verifier, one round after the other ─┐
//	link (leads, steady)┤                                                       ├─▶ metadata (package standing)
//	                    └─ Watcher ─ marks collections changed otherwise ─────┘          │
//	                          └── events, [Watcher.Known] for the status ◀─────────────────┘
//
// [Rounds] compares source and target repeatedly, range by range, at the link's consistent cuts,
// while this process leads and the link is steady, and within a [Budget]. It records the compared ranges
// in the metadata, so the next process continues after a restart or a takeover. No error in it ends or
// slows the link; it reports the reason why it waits, and retries.
//
// [Watcher] runs in every process that leads, whether or not Rounds does. It marks collections that are not
// verified any more, because of foreign writes, a resync, or an operation that has diverged. It reads the
// standing every few seconds. It announces each difference once, and again when a later comparison no
// longer finds it.
//
// # Limits
//
// It writes nothing but its results. A process that has lost the lease cannot store a wrong one: a
// result contains the cuts at which it was observed, and does not replace one of a newer cut.
package continuous
