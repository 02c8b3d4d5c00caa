// Package stages runs the stages that apply the oplog to a target under one term of a link's lease:
//
//	reader ─ replies ─▶ batcher ─ batches ─▶ applier ─ watermarks ─▶ checkpointer ─ progress ─▶ feedback
//
// The reader is given: it fetches from a member of the source, or reads a spool. [New] reads from the
// target what the stages need to know of it, and [Stages.Run] owns their goroutines: it returns when
// all of them have. Once the reader returns nil, the rest drains. If a stage fails, or ctx is done,
// everything stops where it is; the next term resumes from the checkpoint.
//
// The package decides nothing: the caller decides what an error means, and what follows.
package stages
