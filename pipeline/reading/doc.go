// Package reading reads the oplog of a link's source for its attempts: from a member into memory, or through
// the spool on disk:
//
//	a member ─▶ fetcher ─▶ buffer ────────────────────────────▶ the stages after it
//	a member ─▶ fetcher ─▶ spool ─▶ (initialsync.Log) Read ────▶ the stages after it
//
// It goes through the spool while the target is not consistent, while much is left on disk, or if there is
// a relay log. An [Oplog] belongs to a run of a link, and outlasts attempts and leases: to read the source
// and to spool its oplog needs no lease. An [Attempt] is the reading of one attempt. Reading ends with
// [Attempt.End], at the entry given, or with the run; then the later stages drain.
//
// The package decides where an attempt reads, and when the next one has to read elsewhere: package overflow
// for a target that does not keep up, [Oplog.ReadEarlier] for a transaction that began before the checkpoint.
// The caller decides what an error means, and whether another attempt follows.
package reading
