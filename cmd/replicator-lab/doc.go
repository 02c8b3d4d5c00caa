// Command replicator-lab has what replicator does not need where it runs: it shows
// what a link does, proves it on recordings, measures it, and serves the embedded replica
// set to tests in other languages.
//
//	replicator-lab demo
//	replicator-lab corpus [DIR]
//	replicator-lab bench goals|pipeline|apply|ceiling|mirror|catch-up|clone
//	replicator-lab bench presets|compare|report
//	replicator-lab serve
//
// It links the embedded replica set, what draws charts and what reads profiles, and
// so is a program of its own: replicator links none of them. Exit codes are in
// docs/exit-codes.md.
package main
