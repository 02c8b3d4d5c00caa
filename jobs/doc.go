// Package jobs has the named locks of what an operator starts on a target, and of which two
// of a kind must not meet: a resync of a collection; later a repair and a cutover of a link.
// They are slow locks (package lease/locks) in the target's metadata database, so they
// concern all links into that target, and what operators run with "replicator lease exec".
//
// # Names
//
//	namespace/DB.COLLECTION   who changes one collection of the target as a whole
//	database/DB               who begins to do so with one of its collections
//	operation/LINK            reserved: who does something with a link as a whole, for as long as that takes
//
// A job on a collection takes the lock of the database, then that of the collection, and
// unlocks the first one ([Want.Under]). So jobs on two collections of one database run at the
// same time. Who works on a database as a whole takes the database's lock and keeps it: no
// job begins then. It waits for each of its collections' locks in turn, those of jobs that
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
// cannot take them back. What no request needs any more is unlocked by the first attempt of the next leader.
//
//	        Take                       Release
//	free ─────────▶ this leader's ─────────────────▶ free
//	                   │     ▲
//	     End, a crash, │     │ Take in a later term
//	    a lost lease   ▼     │
//	                  the link's ──────────────────▶ free
//	                              nobody leads it for 15 min
//
// A leader that ends does not unlock what its link needs, as a job is not done by that. It
// stops pinging: the next leader has the lock at once, everybody else 15 minutes later.
package jobs
