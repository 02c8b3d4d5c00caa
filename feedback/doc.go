// Package feedback reports to the source how far the mirror has applied its oplog, so
// that clients of the source can wait for the mirror, or see its lag.
//
// The modes are None and:
//
//	Member    replSetUpdatePosition, for a member that exists only in the source's
//	          configuration: write concerns of the source can wait for the
//	          mirror (w: "mirror", by a tag). Needs the privilege internal.
//	Document  a document per link in replicator.positions of the source. Needs
//	          readWrite there.
//
// # Guarantees
//
// Applied is the optime up to which the target has acknowledged everything, durable the
// one up to which a majority of the target has it. Durable is never after applied, neither
// moves back, and nothing is reported before the target has been consistent once. A
// replSetUpdatePosition never reports an optime after the commit point of the member that
// it is sent to. Every optime that is not null has its entry's real wall time (a server
// aborts on any other). The only terms sent are those of the optimes, which come from the
// source's log.
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
// At most one report is in flight; any progress in the meantime causes one more after
// it. The state rest lasts no time for Member, a second for Document, and a second after
// an error. A document is written after operations were applied, otherwise by the
// keep-alive only: each write adds an entry to the source's log, which is progress again
// and would cause an endless loop.
//
// # Errors
//
// No error ends the pipeline. Each is an event, once for consecutive equal ones, and the
// next progress or keep-alive retries. If the member is not in the source's
// configuration, or not authorized, only the keep-alive or a new configuration retries.
package feedback
