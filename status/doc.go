// Package status reports the state of a link: as JSON, as a health check for a
// supervisor, and as metrics.
//
//	pipeline ── Snapshot ──▶ ┌─────────┐ ──▶ GET /status    one Snapshot, as JSON
//	stages ──── events ────▶ │ Tracker │ ──▶ GET /healthz   200, or 503 and why
//	source ◀── queried at ── └─────────┘ ──▶ GET /metrics   the registry, with ours
//	target     intervals
//
// # Accuracy
//
// The state is the pipeline's own; this package never decides that a link is steady.
// Values about the source are as old as its last reply; the snapshot has that age
// (source.dataAgeSeconds). Unknown values are null, and missing from the metrics, never 0.
//
// # Verdict and health
//
// A table has the conditions that a link may be in, from the worst to the best. The first
// that holds is its [Verdict], one sentence with the next step; some of them make the link
// unhealthy: see [Handler]. docs/troubleshooting.md is made from that table.
//
// A link that started with a copy is consistent (Snapshot.Consistent, with the optime since
// which it is) once the copy's phase is done, not earlier.
//
// There is no login, and the responses contain host names, namespaces and error messages:
// listen only on an address that only operators can reach.
package status
