// Package mongosim runs a MongoDB replica set inside the process, for tests.
//
// Code that talks to a replica set has to survive elections, rollbacks, lost replies
// and slow members. With mongosim a test causes each of them at a chosen moment, in
// milliseconds, without a server:
//
//	func TestFailover(t *testing.T) {
//		set := mongosim.StartTest(t, mongosim.Options{Members: 3, Dialect: "7.0"})
//		client, err := mongo.Connect(options.Client().ApplyURI(set.URI()))
//		...
//		if err := set.StepDown(t.Context()); err != nil {
//			t.Fatal(err)
//		}
//		...
//	}
//
// The members listen on TCP ports, on loopback by default, and speak MongoDB's wire
// protocol: drivers, mongosh and other tools connect to [Set.URI] as to any replica set.
// Each member votes, writes or pulls an oplog, and rolls back entries that are not in the
// new primary's history.
//
// # Faults
//
//	StepDown                      the primary steps down, another is elected
//	Kill, Stop, Start, Wipe       a member crashes, is shut down, restarts, loses its data
//	Freeze, Thaw                  a member stops as on SIGSTOP, and continues
//	Isolate, Cut, Fault, Heal     network links fail, in one or both directions, or become
//	                              slow: see package fault
//	FailCommand                   the fail point failCommand
//	DiskFull, SkewClock           writes fail; a clock is wrong
//	SetPressure                   serverStatus shows load
//
// An [Action] is the same in text form, for scenario files.
//
// # Supported
//
//   - CRUD commands, cursors (tailable ones too), retryable writes, transactions,
//     prepared ones included
//   - collections, indexes (as constraints), views, time series, capped and clustered
//     collections, collation, TTL
//   - reads and writes with read and write concern, sessions, causal consistency
//   - an oplog of the chosen version in [Options].Dialect, 4.4 to 8.0
//   - hello, heartbeats, elections, reconfiguration, initial sync, rollback
//   - SCRAM logins, users and roles
//
// Replies and oplog of 5.0 are compared with recordings of a real server; those of the
// other versions follow the documentation.
//
// # Not supported
//
// It is not a database. There is no disk and no query planner, and indexes do not make
// queries faster. These are missing:
//
//   - change streams
//   - the stages $lookup, $graphLookup, $unionWith, $facet, $bucket,
//     $bucketAuto, $sortByCount, $redact, $setWindowFields, $out and $merge; the
//     accumulators of $group but for $sum, $avg, $min, $max, $addToSet and $count
//   - projections with $slice, $elemMatch and the positional operator
//   - geo, text and bit queries, $where, most of $jsonSchema
//   - expressions but for those of field names, arrays, comparisons and logic,
//     and $add, $subtract and $concat; arithmetic on decimals
//   - writes to the database local
//   - bulkWrite across collections, explain, mapReduce, dataSize
//
// Missing features are refused with the server's own error, CommandNotFound or
// NotImplemented, and the name of the feature; nothing is ignored silently.
//
// The clock of a frozen member continues to run. An initial sync copies all data in one
// step. The page docs/embedded-set.md of this module has more: faults, recordings, moods
// (rare replies, injected at random), limits.
//
// # Determinism
//
// With one seed, one script and one client at a time, all identifiers are the same in
// every run: UUIDs of collections and index builds, the ids of the set, of initial syncs
// and of processes. Ports, timestamps and the winners of elections are not: they depend
// on real time and on the order in which goroutines run.
package mongosim
