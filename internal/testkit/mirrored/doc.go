// Package mirrored tests the whole pipeline with recordings: an embedded set plays a
// recorded log, the pipeline follows it over TCP and applies it to another embedded
// set, whose data are then compared with the recording's after/.
//
//	recording ──▶ source set ──TCP──▶ pipeline ──TCP──▶ target set ──▶ compare
//	   before/ ───────────────────────────────────────▶ loaded    after/ ──┘
//
// [Copy] starts with an initial sync instead, while the set plays:
//
//	begin     listing, creating, copying …        everything copied    consistent
//	  │ some │ · ·  ·    ·  ··    ·     ·  ·    · │ some, now and then │ the rest ▶ compare
//
// A [Variant] is a combination of settings. Each has a target of its own; they share
// the source, which has no other writes.
//
// The package trusts that the embedded sets behave like servers, which package
// internal/testkit/transcript tests, and that package compare finds every difference.
package mirrored
