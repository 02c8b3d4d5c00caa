// Package monitor knows what a link is doing, and reports it: its state, its progress and
// lag, its copy, how much of the source's oplog is left for it, and the commands that wait.
//
//	attempts ───── Began, Failed, Ended ──▶ ┌─────────┐ ──▶ Snapshot  for status, logs, tests
//	fetch stage ── Fetch ─────────────────▶ │ Monitor │
//	checkpoints ── Moved, Consistent ─────▶ └─────────┘ ──▶ events    StateChanged, Consistent, warnings
//	                                           ▲
//	WindowLoop, LackingLoop, WaitsLoop, ───────┤   these only observe
//	StandsLoop ────────────────────────────────┘
//
// A Monitor has no effect on the data. The pipeline asks it for the link's progress and for
// the gaps of the target.
//
// # States
//
//	starting ──▶ initial-sync ──▶ catching-up ◀──▶ steady
//	   ▲  │   (copying, replaying)   │    │           │
//	   │  └──────────────────────────┤    └─▶ stale ◀─┘   no member has the position
//	   └── an attempt ended, another ┘
//	starting ◀──▶ standby   another process has the lease
//	any ──▶ standby (this one lost it)
//	any ──▶ stopped (as told)     any ──▶ failed (an error ended it)
//
// The state, and the values it is derived from, change under one lock. A link is steady only if
// an attempt runs, a member of the source is being read, and all that this member has
// reported as committed is in the target, majority-committed.
package monitor
