// Package origin is what the copy of a source has to know of the member that it
// is made from: where the log has to be read and applied from, and whether the
// member is still what it was.
//
// A copy reads documents while they are being written, so it is of no single
// moment; the log makes it one. What of the log it takes is found in the order of
// the server's own initial sync:
//
//	Identify    rollback id, initial-sync id
//	Begin   1   newest entry                          (a)
//	        2   oldest transaction that is open       (b)
//	        3   newest entry                          Begin
//	        4   a read after Begin                    nothing before it is missing now
//	        5   a read of Begin as committed          it will not be rolled back
//	            ... the log is read from FetchFrom = min(a, b) on; documents are copied ...
//	Stop        newest entry                          everything copied is not later
//	            ... (Begin, Stop] is applied ...
//	Check       rollback id, initial-sync id          as they were
//
// # What that order is good for
//
// Package replset says why steps 1 to 3 show all of every transaction that commits
// after Begin.
//
// A primary shows the newest entry that is there, even while others with earlier
// timestamps are still being written. Step 4 waits for those: a read that has to
// show the time of Begin is not answered before. It reads the feature
// compatibility version, because a copy cannot be made while that is changed: the
// log has other forms before and after.
//
// The server does not need step 5. It is there because what is copied at the read
// concern majority, and a log that is read as a majority has it, begin with Begin.
//
// # What is trusted
//
// The member answers for itself: nobody else is asked. That the answers are of
// one member, and not of two that a name stood for in turn, shows by the ids: one
// that was filled anew has another initial-sync id, and one that took entries
// back has another rollback id.
package origin
