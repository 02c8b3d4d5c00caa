// Package update turns an update entry of the oplog into the document that it
// leaves behind.
//
// The o field of an update entry has one of three forms, told apart by
// [Classify]: a whole document (a replacement), a delta ($v: 2), and the older
// $set and $unset modifiers ($v: 1). [Apply] takes any of them and a raw
// document, and gives the raw document that a member of the source set would
// hold after the same entry. "The same" means byte for byte: field order, types
// and duplicate fields included. Nothing is decoded into maps on the way.
//
//	o ──Classify──┬─ replacement ─────────────────────────┐
//	              ├─ delta ──ParseDelta──▶ ObjectDiff ──▶ │ ──▶ new document
//	              └─ modifiers ──────────▶ tree of paths  ┘
//
// [Compose] makes one delta of two that follow one another, and [CompileDelta] an
// update that a client may send. [Diff] goes the other way: from two documents to
// the delta that a server would log for them.
//
// What a delta or a modifier meets may be newer than what it was computed from,
// since a log is applied again after a restart and over a copy that was taken
// while writes went on. Where shapes do not fit, the server writes a null or
// leaves things as they are, and trusts later entries to put it right; so does
// this package. What is not in the grammar is another matter: it is an error
// ([ErrBadDelta], [ErrBadModifiers]), and never skipped.
//
// The document that is passed in is trusted to be valid BSON inside the values
// that an update does not touch; those are copied as they are. The update itself
// is checked throughout.
package update
