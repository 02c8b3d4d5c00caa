// Package lease lets one process at a time write to a replica set, and makes the
// server reject the writes of all processes that had the lease before.
//
// # The problem
//
// A process that was suspended (SIGSTOP, a paused virtual machine, a hanging
// connection) does not know that another one has replaced it. The writes that it sends
// when it resumes are late. A lock that only the processes check does not prevent them:
// the server must refuse them.
//
// # Term
//
// A lease is some fields of a document:
//
//	{_id: NAME, term: 7, holder: "…", instance: "…", writes: 12,
//	 lease: {term: 7, id, termDuration: 40, ttl, granted, expires, why}, …}
//
// [Acquire] raises the term by one, with a compare-and-set on the term that was read.
// The term is the fencing token: it only grows, and each term belongs to one process. The
// holder is the id of the process ([NewProcess]). The instance is a random id of the document: a
// document that is created after a removal, under the same name, has other sessions. All
// other fields belong to the package that uses the lease, which changes them with
// [Lease.Update]. That checks the term, and counts in writes, so that each update changes
// the document.
//
// # Time
//
// A [Claim] with a TTL acquires the lease only where it is free: released, or not renewed in
// time, by the store's clock. The field lease has the grant; it counts only if it has the
// document's term.
//
//	            Acquire: if it is free                 Release
//	free ─────────────────────────────▶ granted ─────────────────▶ free
//	  ▲                                  │  ▲  │
//	  │      expires, by $$NOW           │  └──┘ Keeper: renews it
//	  └──────────────────────────────────┘
//
// A [Keeper] renews the lease and has a context ([Keeper.Lead]) that ends with it. The context
// ends a margin before the lease can expire, counted on this process's clocks from when the last
// successful renewal was sent, and at once when another process has acquired it. Nothing is sent
// on the lease's sessions after that, even by a process that resumes after it was suspended. A
// [Watch] tells a process that stands by when the lease is free.
//
// Their guarantees, with a store that is up:
//
//   - One holder at a time by the store's clock, if its clock does not jump: the process
//     stops before another one may begin.
//   - Whatever the clocks do, writes of one term end when the next one is acquired.
//   - A lease whose holder is gone is free after its TTL. If the store's clock has gone back,
//     after one and a half TTLs in which a process that stands by has seen no renewal.
//   - Waiting processes are not queued. Each tries when the lease is free.
//   - Cost: one update of the document per renewal, acknowledged by the primary; reads of it
//     by each process that stands by, about as often.
//
// A claim without a TTL takes the lease over from any process, and has no end.
//
// # Sessions
//
// [Lease.Session] returns a logical session whose id is derived from the document and a
// name: every process that has the lease uses the same session for the same purpose.
// The transaction numbers carry the term in their high bits. A server accepts only
// growing numbers on a session, so the first write of a new term
//
//   - aborts the transaction that an older term left open on the session, and
//   - makes the server reject all later ones of older terms (TransactionTooOld).
//
// Servers delete sessions after 30 minutes without use, and sessions belong to a database
// user. Therefore each document that is written under the lease contains the term, too,
// and each transaction begins with an update that matches only its own term. [Lease.Fence]
// raises the term of such a document on its session; after it, no transaction of an older
// term on that session or document can commit.
//
// # Acquiring
//
// Acquire can be interrupted after each of its steps; the next call repeats all of them.
//
//  0. With a TTL: the document and the store's clock are read. If another process has the
//     lease, nothing is written, as the number of step 1 would end its transactions.
//  1. On the lease's own session, a retryable write with the transaction number of the new
//     term raises the term. The number aborts an open transaction of an older term.
//  2. The document is read. If two processes sent step 1 with the same number, both got a
//     reply of success: the field holder identifies the one whose write was executed. With a
//     TTL, renewals begin, and a second write waits until the first is majority-committed.
//  3. The caller fences its other documents (Fence), then reads them.
//
// After these steps all of these writes are majority-committed, so all earlier writes on the server
// are majority-committed, too.
//
// # Outcomes
//
// A document with a newer term means that another process has the lease
// ([ErrFenced]). A document with an older term, or none at all, means that the
// servers lost majority-committed writes or were restored ([ErrRewound]): the caller
// must read its data again.
//
// # Not fenced
//
// Commands that take no transaction number (DDL) are not fenced. [Lease.Check] before such
// a command prevents a process that had been suspended from sending it; docs/fencing.md
// has the remaining cases. If the next process logs in as another database user, only the
// documents fence, not the sessions.
package lease
