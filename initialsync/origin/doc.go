// Package origin determines, on the member that is copied, from where the log must be
// read and applied. It also determines whether the member has rolled back or was synced
// again since, so that its record ids and lists are not valid any more.
//
// A copy reads documents while clients write, so it is not consistent by itself; the
// log makes it consistent. The optimes are found in the order of the server's own
// initial sync:
//
//	Identify    rollback id, initial-sync id
//	Begin   1   newest entry                          (a)
//	        2   oldest transaction that is open       (b)
//	        3   newest entry                          Begin
//	        4   a read with afterClusterTime Begin    no oplog hole before Begin
//	        5   a majority read of Begin              it will not be rolled back
//	            ... the log is read from FetchFrom = min(a, b) on; documents are copied ...
//	Stop        newest entry                          no copied document is newer
//	            ... (Begin, Stop] is applied ...
//	Settled     newest entry, a majority read of it   lists were of committed states
//	Check       rollback id, initial-sync id          must be unchanged for record ids
//
// # Reasons for the order
//
// Package replset explains why, with steps 1 to 3, FetchFrom is before all entries of
// every transaction that commits after Begin.
//
// A primary returns its newest entry even while entries with earlier timestamps are
// still uncommitted (oplog holes). Step 4 waits for those: the server does not answer a
// read after Begin before. It reads the feature compatibility version, because a copy
// is not possible while that changes: the log has other formats before and after.
//
// The server's own initial sync does not need step 5. Here it is needed because the
// copy and the log are read with read concern majority, which must include Begin.
//
// # Trust
//
// Only the member itself is asked. If a host name changes to another member, or the
// member's data are replaced, the ids show it: an initial sync changes the initial-sync
// id, and a rollback changes the rollback id.
package origin
