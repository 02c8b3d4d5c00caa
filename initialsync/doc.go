// Package initialsync copies a source that is being written to.
//
// It starts from a copy that the target's metadata have (checkpoint.Copy): a
// member of the source, and the entry of its log (Begin) after which the log is
// applied afterwards. Beside it somebody reads the log from before that entry on.
// What it leaves is a copy in which every collection has the name that it had at
// Begin, and documents of some later time, each of its own. The log, applied from
// Begin on by one who tolerates what is ahead of it, makes it exact.
//
// # Steps
//
//	clearing              what is in the way in the target goes      Copy.Cleared
//	listing               collections are put into the metadata
//	creating views        as they were listed                        Copy.Listed
//	creating collections  each is made, and cut into ranges          created
//	copying documents     range by range                             filled
//	building indexes      of each collection that is filled          done
//	copied
//
// The last three words are states of each collection (checkpoint.CollectionState):
//
//	planned ──▶ created ──▶ filled ──▶ done
//	   │           │                    ▲
//	   └───────────┴──── it is gone ────┘
//
// On the right is what is written, with majority, once a step is done. All that a
// step does may be repeated, so a process that dies, at any point, is followed by
// one that goes on from what is written: at most the last transaction of each
// range is copied again, and at most the indexes that were being built are asked
// for again. Indexes are built while other collections are still being copied.
//
// # What is listed
//
// The collections of the first listing count, and are kept. Views are made at
// once, from the same listing: whatever was done to them since Begin, the log does
// again, so that any listing after Begin will do, and a view may stand on a
// collection that is not there yet.
//
// # What fails
//
// An index or a view that the target refuses for its own sake is left out, and
// told of ([IndexFailed], [ViewFailed]). Such an index is written down with its
// collection before it is noted as held, so that a copy that goes on knows of it.
// A collection that the source drops meanwhile keeps what the target has of it,
// without indexes; the log drops it. Every other error ends the copy.
//
// The package trusts that nobody else writes to what it copies to, and that
// repeating a command of package ddl does no harm.
package initialsync
