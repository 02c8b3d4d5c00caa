// Package checkpoint keeps, in the target, how far a link has come: exactly,
// through crashes and failovers, and fenced against a second process.
//
// # Documents
//
// In the metadata database ("replicator" by default):
//
//	links   {_id: LINK, version, instance, term, holder, source: {...}, writers,
//	         fingerprint, applied: {ts, t}, wall, fetchFrom: {ts, t},
//	         copiedUntil: {ts, t} or absent, advances}
//	lanes   {_id: "LINK/3", term, ts, t, op, begun: {ts, t, op} or absent,
//	         begins or absent}
//	lanes   {_id: "LINK/barrier", the same}
//
// Every start of a link raises its term by one. Holder is the process that did
// it, instance tells a link from an earlier one of the same name. Advances and
// begins count, so that no update is one that changes nothing.
//
// # Lanes
//
// A writer's lane is a document and a logical session, whose id follows from the
// names of database, link, instance and lane; its transaction numbers carry the
// term in their high bits, so that a server refuses (225, TransactionTooOld) what
// an older term sends. A flush is a transaction on the lane's session. Its first
// statement moves the lane's document from the position that it must have, with a
// filter on term and position; if that matches nothing, the transaction is
// abandoned: the lane is no longer ours (ErrFenced), or the target went back
// (ErrRewound).
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
// # Durability
//
// The link's document is advanced in a transaction too, which finds no lane behind
// what it had acknowledged, and which is committed with majority: so a target that
// lost acknowledged flushes in a failover is noticed before anything is built on
// them, and once it commits everything up to the watermark is durable.
//
// # Taking hold
//
// Begin goes in steps, and may be cut off behind each of them: the next Begin
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
// commands outside of transactions are not fenced at all. The same holds for
// commands that take no number (DDL): one that was sent by an older term may be
// carried out after Begin if it was on its way for so long. A session unused for
// 30 minutes is forgotten by the server: Touch is to be called every TouchEvery.
package checkpoint
