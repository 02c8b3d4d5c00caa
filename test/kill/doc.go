// Package kill ends the program with SIGKILL at moments that a seed chooses, over
// and over, while clients write to the source and both sets change their primaries,
// and looks whether the target is equal in the end.
//
//	clients ──▶ source set ──▶ replicator run ──▶ target set
//	              ▲ step-downs      ▲ SIGKILL       ▲ step-downs
//
// The sets are embedded and live in the test; what is killed is the program as it is
// built, so nothing of it survives but what it wrote to the target. Each life may
// have another number of writers, and another way with transactions.
//
// REPLICATOR_KILLS is how often (20), REPLICATOR_SEED chooses the moments (1);
// "make kills" does it 200 times.
package kill
