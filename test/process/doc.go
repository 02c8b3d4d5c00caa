// Package process tests the program as a process, between two embedded sets. It checks
// the data in the target after the program is killed, during a copy and while it mirrors,
// its memory while the target does not answer, and which of several processes leads.
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
// TestRounds runs three processes of one link: see there. REPLICATOR_ROUNDS is how many rounds
// there are (each kind once), REPLICATOR_SEED chooses what happens in them; "make rounds"
// runs 300.
//
// REPLICATOR_KILLS is how often it is killed (20 while it mirrors, 9 around a copy),
// REPLICATOR_SEED chooses when (1); "make kills" does it 200 times each.
package process
