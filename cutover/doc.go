// Package cutover says whether a link can be cut over: whether applications can leave its
// source and use its target instead, now.
//
//	process that leads ── status.Snapshot.Readiness ──────┐
//	or metadata ───────── Stored ─────────────────────────┤
//	both servers ──────── preflight.Cutover, FromFinding ─┼──▶ Report ── Waive ──▶ ready, or not
//	deferred indexes ──── Indexes, at a consistent cut ───┘
//
// Every precondition has a value and, where it is not of now, an age. What is not known counts as
// not met. An operator may waive some of them, by name ([Waivable]), but none on which the
// target being the source depends.
//
// Nothing is written for that, neither to the source nor to the target.
//
// [Drain] proves, once writes to the source are blocked, that the target has everything, and
// [Commit] ends the link: until its last write the link goes on, whatever fails; after it no process
// applies anything of the source any more. Neither changes the source's write block.
package cutover
