// Package metrics checks the metrics. A link runs between two embedded sets: it copies, mirrors a
// few operations of each kind, and is steady. The metrics that its stages, the server and an agent
// register must be those described in docs/metrics.md. testdata/metrics.txt has the gathered ones.
//
// The rules and the dashboard in deploy/ are checked against docs/metrics.md, in their own module.
package metrics
