// Package progress stores the progress of a copy in the target: its collections, and the
// ranges into which they are divided.
//
//	copies  {_id: "LINK/2/c/UUID", number, uuid, ns, options, idIndex, indexes,
//	         docs, bytes, state, gone, again or absent, failed}
//	copies  {_id: "LINK/2/r/UUID/0003", number, uuid, index, spec, at, docs,
//	         bytes, steps, done}
//
// Number is that of the copy (checkpoint.Copy). Values from the source, and those of
// package initialsync/clone, are stored as binary data, because servers may refuse their
// field names.
//
// A range of a collection is copied in transactions on a lane's session. The first
// statements of each (MoveRange) write the lane's document at its expected position, so
// that of a fence and the transaction only one can succeed, and move the range's document
// from its expected step. So documents and progress commit together, and no flush follows
// one that the target lost. Flushes do not wait for a majority. Therefore the transaction
// that records a collection as filled, or the copy as complete, verifies that no range is
// open, and commits with write concern majority.
package progress
