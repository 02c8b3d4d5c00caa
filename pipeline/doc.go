// Package pipeline runs a link: it owns every goroutine between a source's oplog
// and a target, and starts attempts until one ends with an error that is not retried.
//
// # The lease
//
//	            free                          lost, or taken over
//	stand by ─────────▶ attempts, one after the other ─────────▶ stand by
//	   │                       │ soft or ctx done, an error
//	   ▼ soft or ctx done      ▼
//	  end                     end, and the lease is given back
//
// A process whose [Config.Lease] has no TTL takes the lease over from any other, and ends once it is taken over.
//
// # An attempt
//
//	       ┌───────────── lease of the link: one term ──────────────┐
//	source │ fetcher ─▶ buffer ─▶ batcher ─▶ applier ─▶ checkpoint  │ ─▶ feedback
//	       │                        (txn)     (lanes)   (Advance)   │
//	       └─────────────────────────────────────────────────────────┘
//
// It starts with [checkpoint.Store.Acquire], which fences every earlier attempt, also
// those of this process. The log is read from the checkpoint's FetchFrom; operations up
// to a lane's position are skipped. When the target elects another primary, a reply is
// lost, or a lane is not at its expected position, the attempt ends as a whole and the
// next one starts. No stage recovers across a failover by itself, because only the
// documents in the target are authoritative.
//
// # A copy
//
// A new link may start with a copy. Until everything is copied, its attempts run an
// [initialsync.Sync] in place of these stages. After that, until the target has caught
// up, the oplog comes from an [initialsync.Log], which fetches independently of
// attempts:
//
//	Log.Start   fetcher ─▶ spool on disk, from the beginning of the copy
//	copying:    Sync.Run ─▶ lanes
//	replaying:  Log.Read ─▶ batcher ─▶ applier ─▶ checkpoint
//	consistent: the same, until little is left on disk; then as above
//
// The pipeline decides when a copy starts, and when another one does (copyAnew): in place of
// one that is void ([initialsync.Void]), as often as [initialsync.Copies] allows.
//
// # Collections left out
//
// A collection that is copied again (package resync) is left out of the link meanwhile, as
// recorded in the link's document. A Pipeline of its own copies it, whose link is called a
// part of this one. The link's position is always reported through checkpoint.Gaps.Reached;
// Snapshot.Log and the checkpoint are the link's own progress, without these collections.
//
// # Ends
//
//	soft done    drain: reading stops, everything fetched is applied, the last
//	             checkpoint is written, Run returns nil
//	ctx done     stop: all stages stop at once, Run returns the cause
//	an error     failure.Classify: a new attempt after a pause, or the end
//
// Package monitor has the states of a link, and its figures. Package reading has what an attempt reads: from
// a member, or through the spool. Package stages has the stages after that, which promote also runs, for a
// link whose source is gone. Package failure decides whether an error is retried.
//
// The package trusts that only this link writes to the mirrored namespaces of the target,
// and that only replicator writes to the metadata database.
package pipeline
