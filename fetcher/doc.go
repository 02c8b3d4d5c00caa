// Package fetcher is the fetch stage: it reads the source's oplog from a given entry
// on, always from one member at a time, and sends the entries to the next stage.
//
// A member may lag, may no longer have the entry that reading continues from, may have
// another history, may be rolled back, and may stop answering at any moment. In all of
// these cases [Fetcher.Run] guarantees that
//
//   - entries are sent in the order of the oplog, without a gap, each once;
//   - only majority-committed entries are sent;
//   - each time that a cursor is opened, its first entry is the one that reading
//     continues from, with the same timestamp and term;
//   - a reply is checked as a whole before any of its entries is sent;
//   - entries are views into the reply: their bytes are not copied.
//
// # The stage
//
//	  ┌────── another member, or the same one after a pause ◀─────┐
//	  ▼                                                           │
//	choose ─▶ read: replies are checked and sent ─▶ an error, or a better member
//	  │          │                                       │
//	  ▼          ▼                                       ▼
//	too stale   Until was sent, ctx is done             an entry that is not known,
//	everywhere                                          no member has the position
//
// Package syncsource chooses the member, and reports with each reply whether another one
// is better. After an error of a member, Fetcher.judge decides for how long it is not
// chosen again. [Status] has the state of the stage.
//
// # One member
//
// [Reader.Tail] reads one member:
//
//	        ┌──────────── restart: from the last entry sent ◀─────────┐
//	        ▼                                                         │
//	Tail ─▶ find ─▶ first batch checked ─▶ getMore ─▶ reply checked ─▶ sent
//	          │            │                  │ ▲           │          │
//	          │            │                  │ └───────────┼──────────┘
//	          ▼            ▼                  ▼             ▼
//	       refused     behind,             killed,       out of order,
//	       or lost     too stale,          or lost,      unknown entry:
//	          │        start missing       rolled back   end
//	          │            │                  │
//	       restart        end              restart
//
// A restart repeats all checks of a first batch. A second restart without a new entry in
// between is not made: the error is returned.
//
// The first batch:
//
//	no metadata, or metadata of another set        ErrMetadata, ErrForeignSet
//	the commit point is before the start           ErrSourceBehind
//	the first entry is the start                   good
//	else: the oldest entry is after the start      *TooStaleError
//	else: the start is not in its history          *StartMissingError: rolled back
//
// All reads have read concern majority, so a member returns only entries that it knows to
// be majority-committed. An empty first batch does not prove that the start is missing: the
// read may be slightly older than the metadata of its reply. So the start is read again
// before it is reported missing.
//
// A member whose rollback id has changed since the cursor was opened may have another
// history. Its cursor is opened again.
//
// # Trust
//
//   - The payloads of entries are valid BSON: the server has validated them.
//   - The metadata of a reply are determined after its entries: the commit point in a reply
//     is not older than the read. A reply with an entry after the commit point is refused.
//   - A member changes its rollback id before it returns entries of another history.
package fetcher
