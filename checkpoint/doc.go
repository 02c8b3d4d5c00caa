// Package checkpoint stores in the target how far a link has come: exactly, through
// crashes and failovers of the target, and only under the link's lease.
//
// # Lanes
//
// Writers apply the oplog concurrently, so there is no single position. Each writer has
// a lane: a document with the position up to which all of its operations are in the
// target, and a session of the lease. A flush is a transaction on that session. Its
// first statement moves the lane's document from the position and the term that it must
// have; the writes follow. So the position is in the target if and only if the data are.
// If the first statement matches nothing, the transaction is aborted: another process
// has the lease (lease.ErrFenced), or the target lost acknowledged writes
// (lease.ErrRewound), or has one whose reply was lost (ErrAhead).
//
//	         Move, Commit, Moved: in one transaction
//	       ┌─────────────────────────────────────────┐
//	       ▼                                         │
//	┌────────────┐  BeginAlone  ┌───────────────┐    │
//	│ at P       ├─────────────▶│ at P, begun N │    │
//	│            ├──────────────┴───────┬───────┴────┘
//	└────────────┘◀─────────────────────┘
//	                EndAlone: at N
//
// What cannot be in a transaction (DDL, capped collections) is recorded before and
// after (BeginAlone, EndAlone). A process that finds it begun and not ended looks at
// what the target has.
//
// The barrier is one more lane, for operations that every writer waits for, and that
// wait for every writer. After a failover the target may lack the barrier's last flush;
// a writer that was idle meanwhile could not tell. So the first flush of a lane after
// the barrier has moved reads the barrier's document, too.
//
// # Checkpoint
//
// The checkpoint is the optime up to which all lanes have applied everything, in the
// link's document. Advance moves it in a transaction that finds no lane before what it
// had acknowledged, and that commits with majority. So a target that lost acknowledged
// flushes is detected before anything is based on them, and whatever the checkpoint
// covers is durable.
//
// [Store.Acquire] acquires the lease, fences every lane, and returns the [Link], which
// begins at the checkpoint: see package lease.
//
// # Routing
//
// A lane's position has a meaning only together with the rule by which operations are
// assigned to lanes. The field routing is the version of the rule, and the collection
// routes has exceptions: collections of the target whose operations all go to one lane.
// Both change only if no lane is ahead ([Link.SetRouting]), or if no operation that is
// concerned is between the lanes ([Lane.Reroute], in a transaction of the barrier that
// commits with majority).
//
// # Copies
//
// A link may begin with an initial sync. Its state is in the link's document:
//
//	                    all collections           the checkpoint is
//	                    and ranges done           at Stop or after it
//	          ┌─────────┐         ┌───────────┐         ┌──────┐
//	Create ──▶│ copying ├────────▶│ replaying ├────────▶│ done │
//	          └────┬────┘         └─────┬─────┘         └───┬──┘
//	   ▲           │                    │                   │
//	   └───────────┴────────────────────┴───────────────────┘
//	    BeginCopy: copying, with a higher number and another Begin
//
// While documents are copied, the checkpoint stays at Begin. The target is consistent
// from done on only; the field consistent says so to other readers of the metadata.
// BeginCopy puts all lanes at the new Begin: a void copy may have left them further on.
//
// The collections and ranges of a copy belong to package initialsync/progress. It writes
// them in transactions that [Lane.Stay], [Lane.Within] and [Link.Within] begin, and adds
// its own check to the change to replaying.
//
// # Gaps
//
// A collection that is copied again is in the list leftOut of the link's document, from
// one checkpoint on, until it is merged back. The target lacks what the oplog changed in
// it meanwhile, so the position that may be reported is not Applied, but what
// [State.Reached] or [Gaps.Reached] makes of it.
//
// # Documents
//
// In the metadata database ("replicator" by default):
//
//	links   {_id: LINK, version, routing, of or absent,
//	         instance, term, holder, writes,         of package lease
//	         source: {...}, writers, fingerprint,
//	         applied: {ts, t}, wall, fetchFrom: {ts, t},
//	         copiedUntil: {ts, t} or absent, copy: {...} or absent,
//	         consistent: false or true; absent without a copy if nothing is left out,
//	         leftOut: [{ns, since: {ts, t}, wall, asked, failed}] or absent}
//	lanes   {_id: "LINK/3", term, ts, t, op, begun: {ts, t, op} or absent, writes}
//	lanes   {_id: "LINK/barrier", the same}
//	routes  {_id: "LINK/NS", ns}
package checkpoint
