// Package process looks at the program as a process, between two embedded sets:
// what becomes of the target when it is killed, while it copies and while it
// mirrors, and of its memory when the target stops.
//
//	clients ──▶ source set ──▶ replicator run ──▶ target set
//	              ▲ step-downs      ▲ SIGKILL       ▲ step-downs, frozen
//	                                ▼
//	                         spool, taken away
//
// The sets live in the test; the program is built and started as it is, so nothing
// of a life survives but what it wrote to the target, and to the folder of its
// spool, and its memory is its own.
//
// REPLICATOR_KILLS is how often it is killed (20 while it mirrors, 9 around a copy),
// REPLICATOR_SEED chooses when (1); "make kills" does it 200 times each. BenchmarkCopy
// is how long a copy takes from start to end; REPLICATOR_DOCS and
// REPLICATOR_COLLECTIONS say of how much.
package process
