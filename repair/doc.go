// Package repair rewrites documents of a link's target from its source, for requests of the kind
// repair, while the link runs, and verifies the rewritten documents.
//
//	request ──▶ lock ──▶ groups of _ids ──▶ dispatcher of the applier ──▶ a later cut ──▶ answer
//	                         ▲    │              reads the source as of S,
//	                         └────┘              writes at S
//
// The applier writes a group when everything up to an entry S of the source's log, and nothing
// later, is in the target; the source is read as of S then. So the documents written are those that
// the log results in at S, and later entries find the documents that they were logged for. A repair
// reverts no later change, whatever is written to the documents meanwhile. See applier.Repair.
//
// # The collection
//
// A name may stand for several collections in turn. The source's catalog is read before a group is
// handed to the applier, and after its documents are read. The applier has no command of the log
// between the first reading and S. So the collection had the name at S, and still had it when it
// was read; one that was dropped after S would read as empty.
//
// # Failures
//
// A group that cannot be written now is tried again. A leader that finds the request open after another
// one has died begins it again; documents that are already equal are not written again. A failover of
// the target may roll back writes that no majority has. That is why a request is done only once its
// documents are found equal at a consistent cut, which is majority-committed, after the last write.
//
// # Trust
//
// Servers keep the guarantees of read concerns. Cuts are majority-committed.
package repair
