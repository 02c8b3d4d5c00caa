// Package progress records in the target how far a copy is: its collections, and the
// ranges into which they are divided.
//
//	copies  {_id: "LINK/2/c/UUID", number, uuid, ns, options, idIndex, indexes,
//	         docs, bytes, state, gone, failed}
//	copies  {_id: "LINK/2/r/UUID/0003", number, uuid, index, spec, at, docs,
//	         bytes, steps, done}
//
// Number is that of the copy (checkpoint.Copy). What the source wrote, or package
// initialsync/clone reads, is binary data, whatever its field names are.
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
package progress
