// Command replicator-lab has what is not needed in production: a demo of a link, the
// verification of recordings, benchmarks, and a server for tests in other languages, which
// is the embedded replica set.
//
//	replicator-lab demo
//	replicator-lab corpus [DIR]
//	replicator-lab bench goals|pipeline|apply|ceiling|mirror|catch-up|clone
//	replicator-lab bench presets|compare|report
//	replicator-lab serve
//
// It is a program of its own because it links the embedded replica set, a chart library
// and a profile reader. Exit codes are in docs/exit-codes.md.
package main
