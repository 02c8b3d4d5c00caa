// Package buffer bounds the memory of what has been fetched and not yet applied.
//
// A target that stalls must not make the process grow, and one entry may take 16 MB. So
// the budget covers more than a queue. A reply counts from when [Queue.Run] receives it
// until its entries have been applied, which the applier reports with [Queue.Release]:
//
//	fetcher ──in──▶ [ Queue ] ──out──▶ batcher ─▶ applier ─▶ writers
//	   │                │                                        │
//	   │ Headroom       └───────── Limit - Headroom ─────────────┤
//	   │                                                         │
//	   └────────────────────── Limit                      Release(bytes)
//
// While there is no room the Queue does not receive from in, and the sender blocks: that
// is all the back-pressure. The size of a reply is not known before it has been read, so
// up to two replies exceed the limit of the Queue: the one that it has received and that
// waits for room, and the next one, which the fetcher has read by then. Headroom is kept
// free for them.
//
//	Invariant: held <= Limit - Headroom, or held is a single reply.
//
// A reply that is larger than that passes alone, once nothing else is held; otherwise it
// would never pass.
//
// Replies leave in the order in which they came, each once. After in is closed, Run
// sends the rest and returns without waiting for its release. While there is no room it
// does not receive from in, and does not notice that in is closed.
//
// What it trusts: all bytes that were sent are released eventually, and no release waits
// for further input. A stage that waited for the next reply before it released the last
// one would block the pipeline.
package buffer
