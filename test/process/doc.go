// Package process tests the program as a process, between two embedded sets: the
// data in the target after it is killed, during a copy and while it mirrors, and its
// memory while the target does not answer.
//
//	clients ──▶ source set ──▶ replicator run ──▶ target set
//	              ▲ step-downs      ▲ SIGKILL       ▲ step-downs, frozen
//	                                ▼
//	                         spool, taken away
//
// The sets run in the test process; the program is built and started as a separate
// process, so after a kill only the target and the spool directory remain, and its memory
// is measured separately.
//
// REPLICATOR_KILLS is how often it is killed (20 while it mirrors, 9 around a copy),
// REPLICATOR_SEED chooses when (1); "make kills" does it 200 times each.
package process
