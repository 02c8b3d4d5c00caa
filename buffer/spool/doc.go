// Package spool keeps fetched entries on disk until they are applied.
//
// An initial sync may take days, and the source's oplog may cover only hours. So the
// oplog is read from before the first document is copied, and entries that cannot be
// applied yet are stored, and survive crashes. A [Spool] is a queue like buffer.Queue,
// most of it on disk:
//
//	           ┌── disk: Limit, MinFree ──┐      ┌── Memory ──┐
//	in ──Store─┤ 001.spool  002.spool  …  ├──────┤            ├─out─▶ applied
//	           └───Forget─────────────────┘ Read └───Release──┘
//
// Store writes a reply before Read passes it on. Read reads it back, or, if it has
// caught up, passes on the reply that Store has just received. Each of the two may end and
// start again while the other one runs. Memory and disk are released separately: memory by
// Release, when entries have been applied; disk by Forget, when a checkpoint covers them,
// so that they need not be read again.
//
// # Room
//
// There is no room if Limit is reached, if less than MinFree of the disk would be free,
// or if a write fails because the disk is full: the partial record is then cut off.
//
//	       no room for a reply ("spool full")
//	┌──────┐ ─────────────────────────────▶ ┌──────┐ ──┐ every second,
//	│ room │                                │ full │   │ after Forget:
//	└──────┘ ◀───────────────────────────── └──────┘ ◀─┘ look again
//	       it is stored ("spool has room again")
//
// While the spool is full it receives nothing, so the fetcher waits. The file that is being
// written is finished at once, because only finished files can be removed. A reply that is
// larger than Limit passes alone.
//
// # Files
//
// Files are numbered without gaps. Each names the spool it belongs to and the entry
// before its first one, and contains records: a reply, or a part of a large one, with
// its offset in the file, its optimes and a checksum over all of it. A record is
// written by one call. A file is synced as a whole before the next one is started; the
// one that is being written is synced within a second. So after a crash only the end of
// the last file can be torn: Open cuts it off there and logs how much is lost, which is
// fetched again.
//
// Invariant: Read sends exactly the entries that Store received, in the same order and
// without a gap, whatever happened to the files; or it returns a *DamagedError.
//
// A record contains the offset up to which its file had been synced when the record was
// written, so that damage before that offset is distinguished from a torn end. Removal of
// the last records or files is not detected: the spool then ends earlier, and the entries
// after that are read from the source again.
//
// The package trusts that data synced without an error are on the disk. After an error
// nothing more is written: the spool must be opened again, which reads the files. It trusts
// that no other program writes to the files: the lock keeps out other spools only. And it
// trusts the caller to continue reading the source at the last stored entry: a stream that
// begins after it is accepted without a check.
package spool
