// Package spool keeps fetched entries on disk until they are applied.
//
// The reader's problem: a copy takes days, and the source's log keeps hours. So the
// log is read from before the first document is, and what cannot be applied yet
// has to stand somewhere, through crashes too. A [Spool] is a queue like
// buffer.Queue, whose back stands on disk:
//
//	           ┌── disk: Limit, MinFree ──┐      ┌── Memory ──┐
//	in ──Store─┤ 001.spool  002.spool  …  ├──────┤            ├─out─▶ applied
//	           └───Forget─────────────────┘ Read └───Release──┘
//
// What comes in is written before it is handed on. Read reads it back, or hands on
// what just came in if it has caught up. Each of the two may end and begin again
// while the other one runs. Memory and disk are given back apart: memory by Release,
// when entries are applied, disk by Forget, when a majority of the target knows that
// they are, and they need not be read again.
//
// # Room
//
// There is no room when Limit is reached, when less than MinFree of the disk would
// be free, and when a write finds the disk full: then what was written of it is cut
// off.
//
//	       no room for what came in (event Full)
//	┌──────┐ ─────────────────────────────▶ ┌──────┐ ──┐ every second,
//	│ room │                                │ full │   │ after Forget:
//	└──────┘ ◀───────────────────────────── └──────┘ ◀─┘ look again
//	        it is stored (event Room)
//
// While it is full nothing is taken, so the fetcher waits. The file that is being
// written is finished at once, as only finished files can be let go. What is
// larger than Limit passes alone.
//
// # What is on disk
//
// Files are numbered without gaps. Each names the spool it belongs to and the entry
// before it, and holds records: a reply, or a part of a large one, with its place
// in the file, its optimes and a checksum over all of it. A record is written by one
// call. A file is on disk, whole, before the next one is begun; the one that is
// being written follows within a second. So after a crash only its end can be
// torn: Open cuts it off there, and says what is lost (event Cut), which is fetched
// again.
//
//	Invariant: what is handed on is what came in, in the order in which it came,
//	without a gap, whatever happened to the files; or there is a *DamagedError.
//
// A record says up to where its file was on disk when it was written, so that a
// change there is told from a torn end. What cannot be told is that the last
// records, or files, were taken away: then the log ends earlier, and is read on from
// there.
//
// What it trusts: that a disk has what it says it has synced. When it says that it
// could not, nothing more is written: the spool has to be opened again, which reads
// what is there. That nobody else writes to the files: a lock keeps other processes
// out, but not other programs. And that who reads the source on begins at the last
// entry that is there: a stream that begins after it is taken as it is.
package spool
