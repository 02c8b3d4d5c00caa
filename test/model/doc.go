// Package model checks the rules of the lease and of the fence over all interleavings of a
// small instance: two processes (or three), one link, a lane, two entries of the source. It
// is about the rules, not about the code: what the code does is tested elsewhere.
//
//	         raise, renew, write: messages, in any order, late, or lost
//	process ────────────────────────────────────────────────────▶ store
//	  term, until                                                 lease, lane, data
//	  by its clock     tick: time passes, for clocks more or less   clock
//	                   election: the last writes are lost, the clock jumps
//	                   forget: the sessions' numbers are gone
//
// A process need not be frozen: every step may happen at any later time, or never, while
// time passes. A message that arrives after its process has lost the lease is one that was
// between its check and the network, or in a network that was silent.
//
// The checker visits every state that can be reached, breadth first, and verifies:
//
//   - order: no write takes effect after a process of a newer term has begun to lead;
//   - exactly once: each entry is written once, in order, and none that was acknowledged
//     is gone;
//   - terms: no two processes lead in the same term;
//   - one holder: while the store's clock does not jump and nothing is rolled back, a
//     process that uses its lease has it by the store's clock, too;
//   - liveness: from every state each process can get the lease by itself, if it is not
//     disturbed, all others being dead.
//
// Each protection can be switched off. The checker then has to find a sequence of steps to
// a state that must not be: a protection without one would not be needed, or the model
// would not show what it is for.
//
// What it does not cover: commands without a transaction number (DDL), more than one lane,
// the copy, reads from a primary that has been deposed, clocks that run more than a third
// too slow, and times: a tick is any time.
package model
