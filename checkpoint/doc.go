// Package checkpoint stores the position of a link in the target: exactly, also after
// crashes and failovers of the target, and only under the link's lease.
//
// # Lanes
//
// Writers apply the oplog concurrently, so there is no single position. Each writer has
// a lane: a document with the position up to which all of its operations are in the
// target, and a session of the lease. A flush is a transaction on that session. Its
// first statement updates the lane's document to the new position, with a filter on the
// expected position and term; the writes follow. So the position is in the target if and
// only if the data are. If the filter matches nothing, the transaction is aborted:
// another process has the lease (lease.ErrFenced), or the target lost acknowledged
// writes (lease.ErrRewound), or has one whose reply was lost (ErrAhead).
//
//	         Move, Commit, Moved: in one transaction
//	       ┌────────────────────────────────────────┐
//	       ▼                                        │
//	┌────────────┐  Announce  ┌───────────────┐    │
//	│ at P       ├────────────▶│ at P, begun N │    │
//	│            ├─────────────┴───────┬───────┴────┘
//	└────────────┘◀────────────────────┘
//	                Complete: at N
//
// An operation that cannot be in a transaction (DDL, capped collections) is recorded
// before and after it is executed (Announce, Complete). A process that finds one
// announced and not completed compares it with the state of the target.
//
// The barrier is one more lane, for operations that wait for every writer and for which
// every writer waits. After a failover the target may have lost the barrier's last flush,
// which a writer that was idle would not notice. So the first flush of a lane after the
// barrier has moved verifies the barrier's document, too.
//
// # Checkpoint
//
// The checkpoint is the optime up to which all lanes have applied everything, in the
// link's document. Advance moves it in a transaction that verifies that no lane is before
// its acknowledged position, and that commits with write concern majority. So lost flushes
// of the target are detected before the checkpoint covers them, and everything up to the
// checkpoint is majority-committed.
//
// [Store.Acquire] acquires the lease (see package lease), fences every lane, and returns
// the [Link], which starts at the checkpoint.
//
// # Routing
//
// A lane's position has a meaning only together with the rule by which operations are
// assigned to lanes. The field routing is the version of the rule, and the collection
// routes has exceptions: collections of the target whose operations all go to one lane, or
// to a few ([FewLanes]).
// Both change only if no lane is ahead of the others ([Link.SetRouting]), or if no affected
// operation is between the positions of the lanes ([Lane.Reroute], in a transaction of the
// barrier that commits with write concern majority).
//
// A collection whose index is being built may be kept back while the lanes continue: their
// positions show nothing about its later operations ([KeptBack]).
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
// only in the state done; the field consistent is for other readers of the metadata.
// BeginCopy moves all lanes to the new Begin: a void copy may have left them after it.
//
// Package initialsync/progress owns the documents of a copy's collections and ranges. It
// writes them in transactions that begin with [Lane.Stay] or run in [Lane.Within] or
// [Link.Within], and adds its own check to the change to replaying.
//
// # Gaps
//
// A collection that is copied again is in the list leftOut of the link's document, from
// one checkpoint on, until it is merged back. The target lacks its changes meanwhile, so
// Applied must not be reported as the link's position: [State.Reached] and [Gaps.Reached]
// return the position to report.
//
// # Cuts
//
// A [Cut] is a cluster time of the target at which it is the source as of an optime. The
// barrier's lane commits its record while the lanes are idle ([Lane.Cut]), and the cut is
// told once a majority has it ([Link.Confirm]).
//
// # Documents
//
// In the metadata database ("replicator" by default):
//
//	links   {_id: LINK, version, routing, of or absent,
//	         instance, term, holder, writes, lease,  see package lease
//	         source: {...}, writers, fingerprint,
//	         filters: {include, exclude, map, usersAndRoles, reversed} or absent,
//	         back: {link, instance, at, start: {ts, t}} or absent,
//	         over: {at, by, source: {ts, t}, reverse: {start: {ts, t}, wall, target: {id, set}, filters} or absent} or absent,
//	         applied: {ts, t}, wall, fetchFrom: {ts, t},
//	         copiedUntil: {ts, t} or absent, copy: {...} or absent,
//	         consistent: false or true; absent without a copy if nothing is left out,
//	         leftOut: [{ns, since: {ts, t}, wall, asked, failed}] or absent,
//	         keptBack: [{ns, ts, t, op}] or absent}
//	lanes   {_id: "LINK/3", term, ts, t, op, begun: {ts, t, op} or absent, writes}
//	lanes   {_id: "LINK/barrier", the same}
//	terms   {_id: LINK, term}                        of a link that was removed
//	routes  {_id: "LINK/NS", ns, thin: true or absent, lanes, first: or absent}
//	cuts    {_id: LINK, made: {term, number, source: {ts, t}, wall},
//	         cuts: [{source: {ts, t}, wall, target, at}], the newest first}
package checkpoint
