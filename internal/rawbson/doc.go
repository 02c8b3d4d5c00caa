// Package rawbson walks and checks raw BSON without copying or decoding it.
//
// Oplog entries pass through this program as bytes: what the source wrote is
// what the target gets, field order and types included. So every reader here
// hands out views into the caller's buffer. A view is valid for as long as the
// buffer is, and the buffer must not be changed while a view is in use.
//
// An [Iter] checks each element that it steps over: its header, its length, the
// terminators of strings and embedded documents. It does not look inside
// embedded documents; [Validate] does, down to [MaxDepth]. A malformed byte is a
// [*CorruptError] with its offset, never a panic and never a silent stop.
//
// The driver's own low-level reader (bsoncore) is not used for reading: it
// stops at a malformed element without saying where, accepts strings and
// embedded documents without their terminators, and does not look inside
// embedded documents when it validates. Building documents is left to it.
package rawbson
