// Package preflight checks a source and a target before a link writes anything, and
// reports for each check whether it passed, or what to do.
//
// A new link meets the same dozen obstacles: a standalone, a missing role, an oplog of
// twenty minutes, a target that is not empty. Most of them would come up later, one by
// one, some after hours. Here they are all reported at once, one line each.
//
//	source ── topology, clock, version, login ──┐
//	target ── topology, clock, version, login ──┤
//	target ── privileges, the link's checkpoint ┤
//	source ── privileges, the oplog's window, ──┤
//	          what is there and not copied      │
//	          one cluster as both? ─────────────┤
//	          what is in the target already? ───┴──▶ Report
//
// A check ends OK, WARN (the link can run, but an operator should know) or FAIL. A check
// that needs a privilege which the link does not need is a WARN without it. Run returns
// an error only if a server cannot be reached, or if the link has another source.
//
// Nothing is written, neither to the source nor to the target.
//
// The package trusts what servers report about themselves. Things may change between the
// checks and the start; every stage still checks what correctness depends on.
package preflight
