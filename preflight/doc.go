// Package preflight looks at a source and a target before a link writes anything,
// and says of each thing that it looked at whether that is well, or what to do.
//
// Whoever starts a mirror for the first time meets the same dozen obstacles: a
// standalone, a missing role, an oplog of twenty minutes, a target that is not
// empty. Most of them would come up later anyway, one by one, some after hours.
// Here they are all named at once, one line each.
//
//	source ── topology, clock, version, login ──┐
//	target ── topology, clock, version, login ──┤
//	target ── privileges, the link's checkpoint ┤
//	source ── privileges, the oplog's window, ──┤
//	          what is there and not copied      │
//	          one cluster as both? ─────────────┤
//	          what is in the target already? ───┴──▶ Report
//
// A check ends OK, WARN (the link can run, but somebody should know) or FAIL. What
// cannot be looked at for want of a privilege that is not needed is a WARN. Run
// returns an error only where a server cannot be talked to, or where the link is one
// of another source.
//
// Nothing is written, neither to the source nor to the target.
//
// What is trusted: that the servers say the truth about themselves. Between the
// checks and the start things may change; every stage still checks for itself what
// correctness depends on.
package preflight
