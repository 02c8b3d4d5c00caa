// Package lease lets one process at a time write to a replica set, and makes the
// server refuse the writes of all processes that had the lease before.
//
// # The problem
//
// A process that was suspended (SIGSTOP, a paused virtual machine, a connection that
// hangs) does not know that another one has taken its place. What it sends when it
// resumes arrives late. A lock that only the processes check does not help: the data
// have to be fenced where they are stored.
//
// # Term
//
// A lease is three fields of a document:
//
//	{_id: NAME, term: 7, holder: "…", instance: "…", writes: 12, …}
//
// [Acquire] raises the term by one, with a compare-and-set on the term that was read.
// The term is the fencing token: it only grows, and one process has each term. The
// holder is random and names the process. The instance is random and names the
// document: another one under the same name, created after a removal, has its own
// sessions. All other fields belong to the owner of the document, which changes them
// through [Lease.Update], together with the term's check.
//
// # Sessions
//
// [Lease.Session] returns a logical session whose id follows from the document and a
// name: every process that has the lease uses the same session for the same purpose.
// The transaction numbers carry the term in their high bits. A server accepts only
// growing numbers on a session, so the first write of a new term
//
//   - aborts the transaction that an older term left open on the session, and
//   - makes the server refuse all later ones of older terms (TransactionTooOld).
//
// Sessions are forgotten after 30 minutes without use, and belong to a user of the
// server. So that a late write is refused in any case, each document that is written
// under the lease has the term, too, and each transaction begins with an update that
// matches only that term. [Lease.Fence] raises the term of such a document on its
// session; after it, no transaction of an older term on that session or document can
// commit.
//
// # Acquiring
//
// Acquire may be interrupted after each of its steps; the next one repeats them all.
//
//  1. On the lease's own session, a retryable write with the number of the new term
//     raises the term. The number aborts what an older term has open there.
//  2. The document is read. Two processes may have sent step 1 under one number, and
//     both got the answer that it was done: the holder tells which one's it was.
//  3. The caller fences its other documents (Fence), then reads them.
//
// All of these writes wait for a majority, so whatever was on the server before
// is committed by a majority, too.
//
// # Outcomes
//
// A document with a newer term means that another process has the lease
// ([ErrFenced]). One with an older term, or no document at all, means that the
// servers lost majority-committed writes or were restored ([ErrRewound]): the data
// have to be read again.
//
// # What is not fenced
//
// Commands that take no transaction number (DDL). [Lease.Check] before such a command
// keeps a process that had been suspended from sending it; docs/fencing.md says what
// remains. While a process is moved to another user of the server, sessions do not
// fence, and documents alone do.
package lease
