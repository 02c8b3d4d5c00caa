// Package resync copies single collections of a link again, while the link mirrors
// the rest.
//
// The link leaves such a collection out, from one of its checkpoints on. An internal link,
// a part, copies the collection and follows the oplog. Once the part has caught up, both
// advance to the same entry, and the link mirrors the collection again from there on:
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
// A request remains asked, with a reason, while the process has no --spool-dir, and while
// something else has the lock of the collection (package jobs). The link has that lock from before copying
// until done or failed, whichever process leads it; a part that runs without it is stopped. From
// copying on, the collection is in leftOut of the link's document, which is authoritative:
// it is changed together with the request, in a transaction that only the process with
// the link's lease can commit. A collection whose request failed stays left out until it is
// requested again.
//
// A process can end at any point. The next one reads from the metadata which collections
// are left out and the progress of each part, and continues. A part that starts again from
// nothing gets another name, so that a former leader, which may still be removing the old
// part, cannot remove data of the new one.
//
// [Manager] decides which parts run, when one is merged, and how its end is handled. A
// [Runner] runs a part; the Manager does not depend on how it copies.
//
// The package trusts that between two attempts nothing writes for the link, and that a
// Runner writes nothing after its Run has returned.
package resync
