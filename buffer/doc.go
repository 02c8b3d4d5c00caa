// Package buffer bounds the memory of entries that have been fetched and not yet applied.
//
// A target that stalls must not make the process grow, and one entry may take 16 MB. So
// the budget includes entries in later stages: a reply counts from when [Queue.Run]
// receives it until its entries have been applied, which the applier reports with
// [Queue.Release]:
//
//	fetcher ──in──▶ [ Queue ] ──out──▶ batcher ─▶ applier ─▶ writers
//	   │                │                                        │
//	   │ Headroom       └───────── Limit - Headroom ─────────────┤
//	   │                                                         │
//	   └────────────────────── Limit                      Release(bytes)
//
// Back-pressure: while there is no room the Queue does not receive from in, and the
// sender blocks. The size of a reply is not known before it has been read, so
// up to two replies exceed the limit of the Queue: one that it has received and that
// waits for room, and the next one, which the fetcher has already read. Headroom is
// reserved for them.
//
//	Invariant: buffered <= Limit - Headroom, or a single reply is buffered.
//
// A larger reply passes alone, once nothing else is buffered; otherwise it would never pass.
//
// Replies are sent in the order in which they were received, each once. After in is
// closed, Run sends the rest and returns without waiting for its release. While there is
// no room it does not receive from in, and does not notice that in is closed.
//
// The package trusts that all bytes that were sent are released eventually, and that no
// release waits for further input. A stage that waits for the next reply before it
// releases the last one deadlocks the pipeline.
package buffer
