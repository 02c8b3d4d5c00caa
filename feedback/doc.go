// Package feedback reports to the source how far the mirror has applied its oplog, so
// that the source's users can wait for the mirror, or see its lag.
//
// There are two modes, and None:
//
//	Member    replSetUpdatePosition, for a member of the source's configuration
//	          that no process runs: the source's own write concern waits for the
//	          mirror (w: "mirror", by a tag). Needs the privilege internal.
//	Document  a document per link in replicator.positions of the source. Needs
//	          readWrite there.
//
// # Guarantees
//
// What is reported is in the target: applied is what it has acknowledged, durable
// what a majority of it has. Durable is never beyond applied, neither goes back,
// and nothing is reported before the target has been consistent once. By
// replSetUpdatePosition nothing is reported beyond the commit point that the
// member reported to knows of; every optime that is not null has its entry's real
// wall time (a server ends itself over any other); and no term is told but those
// in the optimes, which come from the source's log.
//
// # When
//
//	        progress                        reply
//	┌──────┐ or keep-alive  ┌───────────┐   or error   ┌──────┐
//	│ idle ├───────────────▶│ in flight ├─────────────▶│ rest │
//	└──────┘                └───────────┘              └──┬───┘
//	    ▲                                                 │
//	    └─────────────────────────────────────────────────┘
//
// One report is in flight at most; whatever happens meanwhile makes one more
// after it. Rest is no time for Member, a second for Document, and a second after
// an error. A document is written when operations were applied, otherwise with
// the keep-alive only: writing it makes an entry in the source's log, which is
// progress again, and would be reported without end.
//
// # Errors
//
// No error ends the pipeline. Each is an event, once for consecutive equal ones, and the
// next progress or keep-alive retries. If the member is not in the source's
// configuration, or not authorized, only the keep-alive or a new configuration does.
package feedback
