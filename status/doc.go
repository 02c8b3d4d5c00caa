// Package status reports what a link is doing: as JSON for people and scripts, as a
// health check for a supervisor, and as metrics.
//
//	pipeline ── Snapshot ──▶ ┌─────────┐ ──▶ GET /status    one Snapshot, as JSON
//	stages ──── events ────▶ │ Tracker │ ──▶ GET /healthz   200, or 503 and why
//	source ◀── queried at ── └─────────┘ ──▶ GET /metrics   the registry, with ours
//	target     intervals
//
// # How far to trust it
//
// The state is the pipeline's own; this package never decides that a link is steady.
// What is known of the source is as old as its last answer; the snapshot says how old
// that is (source.dataAgeSeconds). Unknown values are null, and missing from the metrics,
// never 0.
//
// # Health
//
//	initial-sync, catching-up, steady   yes
//	starting                            for as long as Config.StartingGrace
//	stale, failed, stopped              no
//
// A link is also unhealthy while a collection is left out because it could not be copied
// again, and, after some time, while the source does not answer, while the spool of a copy
// is full, and while the source's oplog is about to roll over: see [Handler].
//
// A link that began with a copy is consistent (Snapshot.Consistent, with the entry since
// when) once the copy's phase is done, not earlier.
//
// There is no login, and the answers contain host names, namespaces and error messages:
// serve them only on an address that only operators can reach.
package status
