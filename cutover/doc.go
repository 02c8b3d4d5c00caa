// Package cutover reports whether a link can be cut over, that is, whether applications can
// leave its source and use its target now; and it carries the cutover out.
//
//	process that leads ── status.Snapshot.Readiness ──────┐
//	or metadata ───────── Stored ─────────────────────────┤
//	both servers ──────── preflight.Cutover, FromFinding ─┼──▶ Report ── Waive ──▶ ready, or not
//	deferred indexes ──── Indexes, at a consistent cut ───┘
//
// Every precondition has a value, and an age if the value is not current. An unknown one counts as
// not met. An operator may waive some of them, by name ([Waivable]), but none of those that prove
// that the target equals the source.
//
// The check writes nothing, neither to the source nor to the target.
//
// [Run] carries a cutover out, [Resume] continues one that was interrupted, and [Cancel] reverts it.
// The record (package record) contains the step that was reached; the link's document says whether its deferred options
// are being converted, and whether it has ended:
//
//	the link continues                    no process applies anything      it has ended
//	check ──▶ freeze ──▶ drain ──▶ verify, drain ──▶ convert ──▶ arm ──▶ commit ──▶ thaw ──▶ expire
//	             └──────────┴─────────┴──────────┴─────────┴─ Cancel
//
// Each step may be interrupted anywhere, and is then repeated. [Drain] proves, once writes to the source are
// stopped, that the target has everything. [Convert] and [Revert] convert the deferred options, also without
// a source.
package cutover
