// Package buffer holds what has been fetched until it has been applied, and bounds
// it.
//
// The reader's problem: a target that stalls must not make the process grow, and
// an entry may take 16 MB. So the budget covers more than a queue. A reply counts
// from when [Queue.Run] takes it until what was made of it has been applied, which
// is told by [Queue.Release]:
//
//	fetcher ──in──▶ [ Queue ] ──out──▶ batcher ─▶ applier ─▶ writers
//	   │                │                                        │
//	   │ Headroom       └───────── Limit - Headroom ─────────────┤
//	   │                                                         │
//	   └────────────────────── Limit                      Release(bytes)
//
// While there is no room the Queue takes nothing from in, and whoever sends there
// waits: that is all the back-pressure. The size of a reply is not known before it
// has been read, so two replies stand outside of what the Queue lets in: the one
// that it has taken and that has to wait for room, and the one that the fetcher has
// in its hands by then. Headroom is kept free for them.
//
//	Invariant: held <= Limit - Headroom, or held is a single reply.
//
// A reply that is larger than that passes alone, once nothing else is held: else it
// would never pass.
//
// Replies leave in the order in which they came, each once. When in is closed the
// rest is sent, and Run returns without waiting for its release; but as long as
// there is no room it does not look at in, and does not see that it is closed.
//
// What it trusts: that Release is told, sooner or later, of all bytes that went
// out, without more having to come in first. A stage that waits for the next reply
// before it gives back the bytes of the last one would stop the pipeline.
package buffer
