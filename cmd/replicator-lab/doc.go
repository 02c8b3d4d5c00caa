// Command replicator-lab has the tools that are not for production: a demo of a link, the
// verification of recordings, benchmarks, and the embedded replica set as a server, for
// tests in other languages.
//
//	replicator-lab demo
//	replicator-lab corpus [DIR]
//	replicator-lab bench goals|pipeline|apply|ceiling|mirror|catch-up|clone
//	replicator-lab bench presets|compare|report
//	replicator-lab serve
//
// It is a separate program because it links the embedded replica set.
// Exit codes are in docs/exit-codes.md.
package main
