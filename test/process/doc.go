// Package process looks at the program as a process, between two embedded sets:
// what becomes of the target when it is killed, and of its memory when the target
// stops.
//
//	clients ──▶ source set ──▶ replicator run ──▶ target set
//	              ▲ step-downs      ▲ SIGKILL       ▲ step-downs, frozen
//
// The sets live in the test; the program is built and started as it is, so nothing
// of a life survives but what it wrote to the target, and its memory is its own.
//
// REPLICATOR_KILLS is how often it is killed (20), REPLICATOR_SEED chooses when (1);
// "make kills" does it 200 times.
package process
