// Package preflight checks a source and a target before a link writes anything, and
// reports for each check whether it passed, or what to do.
//
// Typical obstacles of a new link are a standalone server, a missing role, an oplog window
// of twenty minutes, a target that is not empty. Without these checks they would appear one
// after the other, some after hours. The checks report all of them at once, one line each.
//
//	source ── topology, clock, version, login ──┐
//	target ── topology, clock, version, login ──┤
//	target ── privileges, the link's checkpoint ┤
//	source ── privileges, the oplog's window, ──┤
//	          data that will not be copied      │
//	          same cluster on both sides? ──────┤
//	          existing data in the target? ─────┴──▶ Report
//
// The result of a check is OK, WARN (the link can run, but an operator should know) or FAIL.
// A missing privilege is a WARN if only the check needs it. Run returns an error only if a
// server cannot be reached, or if the link has another source.
//
// Nothing is written, neither to the source nor to the target.
//
// The package trusts the servers' reports about themselves. Conditions may change between
// the checks and the start; every stage still checks all that correctness depends on.
package preflight
