// Package workload writes to a replica set the way applications do, for tests
// that need something to mirror while things break.
//
// Every worker writes on its own, at random by the seed: inserts, updates of many
// forms, replacements, deletes, transactions over several collections and, where
// it is wanted, commands: indexes, collections that come, are renamed and go, and
// a capped one. What the set refuses, or does not answer, is counted and passed
// over: a workload does not know what it has written, the set does.
//
//	 Run ──▶ worker 0 ─┐
//	     ├─▶ worker 1 ─┼─▶ the set's primary
//	     └─▶ commands ─┘
//
// It trusts nothing and is for tests only.
package workload
