// Package update applies the update entries of the oplog to raw documents.
//
// The o field of an update entry has one of three forms, which [Classify]
// returns: a whole document (a replacement), a delta ($v: 2), and the older
// $set and $unset modifiers ($v: 1). [Apply] takes any of them and a raw
// document, and returns the raw document that a member of the source set has
// after the same entry, byte for byte: field order, types and duplicate fields
// included. Nothing is decoded into maps.
//
//	o ──Classify──┬─ replacement ─────────────────────────┐
//	              ├─ delta ──ParseDelta──▶ ObjectDiff ──▶ │ ──▶ new document
//	              └─ modifiers ──────────▶ tree of paths  ┘
//
// [Arena.Compose] returns one delta for two consecutive ones, and [CompileDelta] an
// update that a client can send. [Diff] is the inverse: it returns the delta that
// a server would log for the change from one document to another.
//
// A document may be newer than the one that the delta or modifier was computed
// from, because a log is applied again after a restart, and to a copy that was
// taken during writes. If the types of fields do not match, the server writes a
// null or changes nothing, and a later entry corrects the result; so does this
// package. A malformed delta or modifier is an error ([ErrBadDelta],
// [ErrBadModifiers]), and never skipped.
//
// The package trusts that a document passed in is valid BSON inside the values that
// an update does not change; those are copied unchanged. The update itself is
// validated completely.
package update
