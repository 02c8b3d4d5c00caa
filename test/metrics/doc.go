// Package metrics checks what /metrics has. A link runs between two embedded sets: it copies,
// mirrors a few operations of each kind, and is steady. Whatever its stages register meanwhile, and
// what the server and an agent do, is what docs/metrics.md describes. testdata/metrics.txt has what is
// then gathered.
//
// The rules and the dashboard in deploy/ are checked against docs/metrics.md, in their own module.
package metrics
