// Package standing stores the results of a link's verification: which collections of the target
// were compared with the source, as of which consistent cut, and what differed. Every
// verification writes it (package verify, for the command and for a link that verifies itself); status,
// cutover and the page read it.
//
//	verify ── round, ranges, results ──▶ ┌──────────────────────┐
//	                                     │ verified (metadata)  │ ──▶ [Read] ──▶ [Standing]
//	guard, resync, divergences ─ marks ─▶└──────────────────────┘
//
// # Verified as of
//
// A result says that a collection was compared at cuts of which the oldest is Result.First. Each range
// was equal at a cut that is not older, but for the differences that the result counts. A link is
// verified as of the oldest First of all collections that count. It is not verified as long as one
// of them has no result, or was marked since the result: because of a foreign write, a resync, or an
// operation that met a state that it cannot have met at the source.
//
// Each verification is a round: it lists the collections, and compares them all. A collection counts
// once a round has ended that listed it at its beginning. A collection that is created or renamed during a
// round counts from the next one on, so that frequent DDL commands do not leave a link unverified for
// ever; until then Standing.New counts it. A dropped collection no longer counts from the next listing on.
//
// # Concurrent verifications
//
// Two verifications may run at the same time. A result does not replace one of a newer cut. A result
// is an observation of both sides at its cuts, and holds whichever process leads the link now; so a
// process that has lost the lease cannot store a wrong one. A compared range counts only for the plan of
// ranges that its own verification has stored.
//
// Therefore documents are read as the target's primary has them. A failover may roll back what nothing has confirmed yet, and the observation
// is still right; a read that returned fewer than the confirmed ones could call a link verified after a difference was found.
package standing
