// Package jobs takes the named locks of jobs that an operator starts on a target and that must not
// run concurrently: a resync, a repair, a cutover.
// They are slow locks (package lease/locks) in the target's metadata database, so they
// concern all links into that target, and what operators run with "replicator lease exec".
//
// # Names
//
//	namespace/DB.COLLECTION   a job that changes a whole collection of the target
//	database/DB               a job that is about to do so with one of its collections
//	operation/LINK            a job that concerns a whole link, such as a cutover
//
// A job on a collection takes the lock of the database, then that of the collection, and
// unlocks the first one ([Want.Under]). So jobs on two collections of one database run at the
// same time. A job on a whole database takes the database's lock and keeps it: no
// other job begins then. It waits for each of its collections' locks in turn, those of jobs that
// had begun before.
//
// # Owners
//
// The owner of a lock is a link, not the process that leads it. Its "who" says which job of
// which link has it, and in which term of the link it was taken:
//
//	resync of link dr, term 7
//
// A process that leads in a later term takes up the locks of earlier ones; a process that was deposed
// cannot take them back. A lock that no request needs any more is unlocked by the first attempt of the next leader.
//
//	        Take                       Release
//	free ─────────▶ this leader's ─────────────────▶ free
//	                   │     ▲
//	     End, a crash, │     │ Take in a later term
//	    a lost lease   ▼     │
//	                  the link's ──────────────────▶ free
//	                              it has no leader for 15 min
//
// A leader that ends does not unlock what its link needs, because the job is not done. It
// stops pinging: the next leader has the lock at once, any other process after 15 minutes.
package jobs
