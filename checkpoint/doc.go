// Package checkpoint keeps, in the target, how far a link has come: exactly,
// through crashes and failovers, and fenced against a second process.
//
// (Contract; the owner of the package writes this page anew.)
//
// Documents, in the metadata database ("replicator" by default):
//
//	links   {_id: LINK, version, term, source: {...}, writers, fingerprint,
//	         applied: {ts, t}, wall, fetchFrom: {ts, t}, copiedUntil: {ts, t}}
//	lanes   {_id: "LINK/3", term, ts, t, op}             one per writer
//	lanes   {_id: "LINK/barrier", term, ts, t, op, begun: {ts, t, op} or absent}
//	held    see package applier/ddl
//
// Each lane has a logical session of its own, whose id follows from the link's
// name and the lane's; its transaction numbers carry the term in their high bits,
// so that a server refuses (225, TransactionTooOld) what an older term sends.
//
// A flush is a transaction on the lane's session. Its first statement moves the
// lane's document from the position that it must have, with a filter on term and
// position; if that matches nothing, the transaction is abandoned: the lane is
// no longer ours (ErrFenced), or the target went back (ErrRewound).
//
// The link's document is advanced in a transaction too, which reads all lanes
// and finds none behind what they had acknowledged, and which is committed with
// majority: so a target that lost acknowledged flushes in a failover is noticed
// before anything is built on them, and once it commits everything up to the
// watermark is durable.
package checkpoint
