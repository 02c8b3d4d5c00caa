// Package initialsync copies a source that is being written to.
//
// It follows the server's own initial sync. A copy is made from one member ([Member]).
// [Begin] finds the two optimes that it starts with: FetchFrom (MongoDB's
// beginFetchingTimestamp), from which the oplog is read, and Begin
// (beginApplyingTimestamp), after which it is applied. [Log] fetches the oplog from
// FetchFrom on and spools it to disk, independently of attempts. Meanwhile [Sync]
// copies: when it ends, every collection has the name that it had at Begin, and
// documents of some later time, each of its own. It records Stop (stopTimestamp), the
// newest entry then. The oplog, applied idempotently up to Stop, makes the copy exact,
// and [Finish] records that.
//
// # Steps of a Sync
//
//	clearing              collections of the target that are in the way
//	                      are dropped                                     Copy.Cleared
//	listing               the source's collections are recorded
//	creating views        as they were listed                             Copy.Listed
//	creating collections  each is created, and divided into ranges        created
//	copying documents     range by range                                  filled
//	building indexes      of each collection that is filled               done
//	copied
//
// The last three words are states of each collection (progress.State):
//
//	planned ──▶ created ──▶ filled ──▶ done
//	   │           │                    ▲
//	   └───────────┴── it was dropped ──┘
//
// The right column is what is written, with majority, once a step is done. Every step
// is idempotent, so a process that dies at any point is followed by one that resumes
// from what is written: at most the last transaction of each range is copied again, and
// at most the indexes that were being built are requested again. Indexes are built
// while other collections are still being copied.
//
// # What is listed
//
// The first listing of collections is kept. Views are created at once, from the same
// listing: the oplog repeats whatever was done to them since Begin, so any listing
// after Begin is good, and a view may be created before the collection it is on.
//
// # Errors
//
// An index or a view that the target refuses for its own sake is left out, and
// reported. Such an index is recorded with its collection before it is recorded as
// deferred, so that a copy that resumes knows of it. A collection that the source drops
// meanwhile keeps what the target has of it, without indexes; the oplog drops it. Every
// other error ends the Sync. [Void] reports whether the copy itself is lost.
//
// # What it trusts
//
// That nothing else writes to what it copies to, and that commands of package ddl are
// idempotent.
package initialsync
