// Package continuous keeps a link verified while it runs, and says so.
//
//	                    ┌─ Rounds ─ verify.Verifier, one round after the other ─┐
//	link (leads, steady)┤                                                       ├─▶ metadata (package standing)
//	                    └─ Watcher ─ marks what has changed in other ways ──────┘          │
//	                          └── events, [Watcher.Known] for the status ◀─────────────────┘
//
// [Rounds] compares source and target over and over, range by range, at the link's consistent cuts:
// only while this process leads and the link is steady, and within a [Budget]. What it has compared is
// in the metadata, so the next process goes on after a restart or a takeover. No error of it ends or
// slows the link; it reports the reason why it waits, and retries.
//
// [Watcher] runs in every process that leads, whether or not Rounds does: it marks collections that are not
// verified any more, because something else has written to them, they are copied again, or an operation
// has diverged. It reads the standing every few seconds, and announces each difference once, and when a
// later comparison no longer finds it.
//
// # Limits
//
// It writes nothing but what it has found. A process that has lost the lease can store no wrong result:
// a result says at which cuts it was observed, and replaces none of a newer cut.
package continuous
