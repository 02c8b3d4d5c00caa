// Package status says what a link is doing: as JSON for people and scripts, as a
// verdict for a supervisor, as metrics.
//
//	pipeline ── Snapshot ──▶ ┌─────────┐ ──▶ GET /status    one Snapshot, as JSON
//	stages ──── events ────▶ │ Tracker │ ──▶ GET /healthz   200, or 503 and why
//	source ◀─── asked now ── └─────────┘ ──▶ GET /metrics   the registry, with ours
//	target      and then
//
// # What can be believed
//
// The state is the pipeline's own: nothing here calls a link steady. Everything
// that is known from the source is as old as its last answer, and the snapshot says
// how old that is (source.dataAgeSeconds). What is not known is null and missing
// from the metrics, never 0.
//
// # Healthy
//
//	initial-sync, catching-up, steady   yes
//	starting                            for as long as Config.StartingGrace
//	stale, failed, stopped              no
//
// And not while a collection is left out because it could not be copied again, nor
// for long while nothing is heard of the source, while the spool of a copy
// is full, and while the source's oplog is about to roll over: see Handler.
//
// A link that began with a copy is consistent (Snapshot.Consistent, and since which
// entry) once the copy's phase is done, and not a moment earlier.
//
// Serving needs no login and shows names of hosts, namespaces and the texts of
// errors: it belongs on an address that only operators reach.
package status
