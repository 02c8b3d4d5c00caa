// Package pipeline runs a link: it owns every goroutine between a source's oplog
// and a target, begins again what can be begun again, and is the one place that
// decides what an error of an attempt means.
//
// # An attempt
//
//	       ┌───────────── lease of the link: one term ──────────────┐
//	source │ fetcher ─▶ buffer ─▶ batcher ─▶ applier ─▶ checkpoint  │ ─▶ feedback
//	       │                        (txn)     (lanes)   (Advance)   │
//	       └─────────────────────────────────────────────────────────┘
//
// It begins with [checkpoint.Store.Begin], which fences every earlier one, also of
// this process. The log is read from the checkpoint's FetchFrom; what a lane has is
// skipped. When the target changes its primary, an answer does not come, or a lane
// is not where it was left, the attempt ends as a whole and the next one begins: no
// stage repairs anything across a failover, because what is in the target is said
// by the target alone.
//
// # A copy
//
// A new link may begin with a copy. Until everything is copied its attempts run an
// [initialsync.Sync] in place of these stages; then, until the target has caught up,
// the oplog comes from an [initialsync.Log], which fetches independently of attempts:
//
//	Log.Start   fetcher ─▶ spool on disk, from the beginning of the copy
//	copying:    Sync.Run ─▶ lanes
//	replaying:  Log.Read ─▶ batcher ─▶ applier ─▶ checkpoint
//	consistent: the same, until little is left on disk; then as above
//
// The pipeline decides when a copy begins (beginCopy), when it is void
// ([initialsync.Void]) and how often another one is begun (copyAnew).
//
// # Left out
//
// A collection that is copied again (package resync) is left out meanwhile, which is noted
// in the link's document. It is copied by a Pipeline of its own, whose link is a part of
// this one. Every report of the link's position is what checkpoint.Gaps.Reached makes of
// its progress; Snapshot.Log and the checkpoint are for the link itself.
//
// # Ends
//
//	soft done    reading stops, everything fetched is applied, the last checkpoint
//	             is written, Run returns nil
//	ctx done     everything stops where it is, Run returns the cause
//	an error     Classify: a new attempt after a pause, or the end
//
// # States
//
//	starting ──▶ initial-sync ──▶ catching-up ◀──▶ steady
//	   ▲  │   (copying, replaying)   │    │           │
//	   │  └──────────────────────────┤    └─▶ stale ◀─┘   no member has the position
//	   └── an attempt ended, another ┘
//	any ──▶ stopped (as told)     any ──▶ failed (an error ended it)
//
// What is trusted: that nobody else writes to what is mirrored in the target, and
// nobody at all to the metadata database.
package pipeline
