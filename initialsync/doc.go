// Package initialsync copies a source while clients write to it.
//
// It follows the server's own initial sync. A copy is read from one member at a time
// ([Members]). [Members.Begin] finds two optimes: FetchFrom (MongoDB's beginFetchingTimestamp), from which the
// oplog is read, and Begin (beginApplyingTimestamp), after which it is applied. [Log]
// fetches the oplog from FetchFrom on and spools it to disk, independently of attempts.
// Meanwhile [Sync] copies collections under the names that they had at Begin, and each
// document as of some later time. Then it records Stop (stopTimestamp), the newest entry
// at that moment. The oplog, applied idempotently up to Stop, makes the copy exact, and
// [Log.Finish] records that.
//
// # Steps of a Sync
//
//	clearing              existing collections of the target that the
//	                      copy replaces are dropped                       Copy.Cleared
//	listing               the source's collections are recorded
//	creating views        as they were listed                             Copy.Listed
//	creating collections  each is created, and divided into ranges        created
//	copying documents     range by range                                  filled
//	building indexes      of each collection that is filled               done
//	copied
//
// created, filled and done are states of each collection (progress.State):
//
//	planned ──▶ created ──▶ filled ──▶ done
//	   │           │                    ▲
//	   └───────────┴── it was dropped ──┘
//
// The right column has the field or state that is stored, with write concern majority,
// when a step is done. Every step is idempotent, so after a crash another process resumes
// from the stored state: at most the last transaction of each range is copied again, and
// at most the indexes that were being built are requested again. Indexes are built
// while other collections are still being copied.
//
// # Listing
//
// The first listing of collections is stored. Views are created at once, from the same
// listing: the oplog repeats all changes to them since Begin, so any listing after Begin
// is valid, and a view may be created before the collection that it reads.
//
// # Errors
//
// An index or a view that the target refuses as invalid, or an index that needs more memory than the target allows, is left out, and reported. Such an
// index is recorded with its collection before it is recorded as deferred, so that a
// resumed copy reports it too. If the source drops a collection meanwhile, its copy ends
// incomplete and without indexes; the oplog drops it on the target. Every other error ends
// the Sync. [Void] reports whether the copy itself is lost.
//
// # Trust
//
// Nothing else writes to the collections of the target, and commands of package ddl are
// idempotent.
package initialsync
