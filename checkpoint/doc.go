// Package checkpoint keeps, in the target, how far a link has come: exactly,
// through crashes and failovers, and fenced against a second process.
//
// # Documents
//
// In the metadata database ("replicator" by default):
//
//	links   {_id: LINK, version, routing, instance, term, holder, source: {...}, writers,
//	         fingerprint, applied: {ts, t}, wall, fetchFrom: {ts, t},
//	         copiedUntil: {ts, t} or absent, advances, copy: {...} or absent,
//	         consistent: false or true, absent without a copy where nothing is
//	         left out,
//	         leftOut: [{ns, since: {ts, t}, wall, asked, failed}] or absent}
//	lanes   {_id: "LINK/3", term, ts, t, op, begun: {ts, t, op} or absent,
//	         begins or absent}
//	lanes   {_id: "LINK/barrier", the same}
//	routes  {_id: "LINK/NS", ns}
//	copies  {_id: "LINK/2/c/UUID", number, uuid, ns, options, idIndex, indexes,
//	         docs, bytes, state, gone, failed}
//	copies  {_id: "LINK/2/r/UUID/0003", number, uuid, index, spec, at, docs,
//	         bytes, steps, done}
//	requests  {_id: LINK, bytesPerSecond or absent, opsPerSecond or absent}
//	requests  {_id: "LINK/NS", ns, asked, state, why}
//
// Every start of a link raises its term by one. Holder is the process that did
// it, instance tells a link from an earlier one of the same name. Advances and
// begins count, so that no update is one that changes nothing. What the source
// wrote, or another package reads, is in copies as binary data, whatever its field
// names are.
//
// # Lanes
//
// A writer's lane is a document and a logical session, whose id follows from the
// names of database, link, instance and lane; its transaction numbers carry the
// term in their high bits, so that a server refuses (225, TransactionTooOld) what
// an older term sends. A flush is a transaction on the lane's session. Its first
// statement moves the lane's document from the position that it must have, with a
// filter on term and position; if that matches nothing, the transaction is
// abandoned: the lane is no longer ours (lease.ErrFenced), or the target went back
// (lease.ErrRewound).
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
// What transactions cannot do is announced first and ended after (BeginAlone,
// EndAlone), so that a later start knows what may or may not have been done.
//
// Writers do not wait for each other, but all of them wait for the barrier lane,
// and it for them. A target that lost the barrier's last flush in a failover
// could still take the later one of a writer that has been idle. Therefore the
// first Move of a lane after the barrier moved finds, in its transaction, that the
// barrier is still where it was.
//
// # Routing
//
// What a lane's position says depends on which operations are given to it. Routing is
// the version of the rules for that, and routes has the collections of the target all
// of whose operations go to one lane. Both are changed only where no lane is ahead
// ([Link.SetRouting]), or where no operation that they are about is between the lanes
// (Reroute, in a transaction of the barrier that is committed with majority).
//
// # Copies
//
// A link may begin with a copy of what the source has. It is in the link's
// document, with the entry Begin after which the log is applied to it:
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
// In copying the checkpoint stays at Begin. Only in done the target is consistent,
// which the field consistent says to whoever reads the metadata.
//
// A range of a collection is copied in transactions on a lane's session. The first
// statements of each (MoveRange) find the lane's document where it is, as a write,
// so that a fence and the transaction cannot both succeed, and move the range's
// from the step that it must have: the documents, and how far they are copied, are
// there together or not at all, and no flush follows one that the target lost. Such
// flushes are not waited for until a majority has them. So that nothing is built on
// lost ones all the same, a collection that is said to be filled, and a copy that is
// said to be complete, are found without an open range in the same transaction,
// which is committed with majority.
//
// BeginCopy puts all lanes at the new Begin. A void copy may have left them further
// on, and what the log has up to there would not be applied to the new one.
//
// # Requests
//
// Whoever may write to the metadata can limit a link's copy, or have a collection
// copied again, whatever process runs it. These documents are not fenced: they say
// what is wanted, not what was done. That one is done is said by the process that has the lease.
//
// A collection that is copied again is in leftOut of the link's document from one of
// its checkpoints on (Link.LeaveOut), until the link has it again. What the log was
// applied to meanwhile (applied) lacks it. So nobody may report applied as it is: what
// may be reported is State.Reached, and Gaps.Reached for what is newer.
//
// # Durability
//
// The link's document is advanced in a transaction too, which finds no lane behind
// what it had acknowledged, and which is committed with majority: so a target that
// lost acknowledged flushes in a failover is noticed before anything is built on
// them, and once it commits everything up to the watermark is durable.
//
// # Acquiring the lease
//
// Acquire goes in steps, and may be cut off after each of them: the next Acquire
// does all of them again.
//
//  1. On the link's session, a retryable write with the number of the new term
//     raises the term from the one that was read. Its number aborts what an older
//     term has open on the session.
//  2. The link is read. Two processes may have sent step 1 under one number, and
//     both been told that it was done: the holder says whose it was.
//  3. On each lane's session, a retryable write with the number of the new term
//     raises the term of the lane's document. It aborts the transaction that an
//     older term has open, and whatever that sends later is refused: by the
//     session's number, or by the term of the document.
//  4. The lanes are read. All of these writes are committed by a majority, so
//     what was in the target before is too.
//
// # What it trusts
//
// The target's users: sessions belong to a user. While a link is moved to another
// user of the target, numbers do not fence, only the documents' terms do, and
// commands outside of transactions are not fenced at all. Commands that
// take no number (DDL) are fenced by who sends them, with Check and Within; see
// docs/fencing.md for what is left of that. A session unused for
// 30 minutes is forgotten by the server: Touch is to be called every TouchEvery.
package checkpoint
