// Package resync copies single collections of a link again, while the link mirrors
// the rest.
//
// The link leaves such a collection out, from one of its checkpoints on. A link of its
// own, a part, copies the collection and follows the oplog. Once the part has caught
// up, both are brought to the same entry, and the link has the collection again from
// there:
//
//	link  ──────┬ without the collection ────────────┬── with it
//	            │                                    │ both at one entry
//	part        └ copy ─ apply the spool ─ follow ───┘
//
// The states of a request, in the metadata:
//
//	asked ──▶ copying ──▶ joining ──▶ done
//	  │          │           │
//	  └──────────┴───────────┴──────▶ failed
//
// Asked stays, with a reason, for as long as the process has no folder for the oplog.
// From copying on, the collection is in leftOut of the link's document, and that
// document decides: it is changed together with the request, in a transaction that only
// the leader of the link can commit. A failed one stays left out until it is requested
// again.
//
// A process can end at any point. The next one finds in the metadata what is left out
// and how far each part is, and continues. A part that has to begin anew gets another
// name, so that nothing a former leader still removes belongs to a current part.
//
// [Manager] decides which parts run, when one is merged, and what its end means. It
// knows nothing of how a part is copied: that is a [Runner].
//
// What is trusted: between two attempts nothing writes for the link, and a Runner writes
// nothing once its Run has returned.
package resync
