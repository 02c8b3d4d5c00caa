// Package mirrored proves that recordings come out equal at the end of the whole
// way: an embedded set plays a recorded log, the pipeline follows it over TCP and
// applies it to another embedded set, and what that one then holds is compared
// with the recording's after/.
//
//	recording ──▶ source set ──TCP──▶ pipeline ──TCP──▶ target set ──▶ compare
//	   before/ ───────────────────────────────────────▶ loaded    after/ ──┘
//
// [Copy] begins with a copy of its own instead, that it takes while the set plays:
//
//	begin     listing, creating, copying …        everything copied    consistent
//	  │ some │ · ·  ·    ·  ··    ·     ·  ·    · │ some, now and then │ the rest ▶ compare
//
// A [Variant] says with which settings. Each has a target of its own; they share
// the source, which nobody writes to.
//
// It trusts the embedded sets to behave as servers do, which package
// internal/testkit/transcript looks after, and package compare to see every
// difference.
package mirrored
