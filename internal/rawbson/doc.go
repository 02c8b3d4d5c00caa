// Package rawbson walks and checks raw BSON without copying or decoding it.
//
// Oplog entries pass through this program as bytes, so that field order and types
// stay unchanged. So every reader here returns views into the caller's buffer. The
// buffer must not be changed while a view is in use.
//
// An [Iter] checks each element that it steps over: its header, its length, the
// terminators of strings and embedded documents. It does not look inside
// embedded documents; [Validate] does, down to [MaxDepth]. A malformed byte is a
// [*CorruptError] with its offset, never a panic and never a silent stop.
//
// The driver's own low-level reader (bsoncore) is not used for reading: it
// stops at a malformed element without its offset, accepts strings and
// embedded documents without their terminators, and does not validate
// embedded documents. It is used to build documents.
package rawbson
