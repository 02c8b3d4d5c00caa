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
// The members listen on ports, of loopback by default, and speak MongoDB's wire protocol: drivers,
// mongosh and other tools connect to [Set.URI] as to any replica set. Each member has
// a term and a vote, writes or pulls an oplog, and is rolled back if its entries lost.
//
// # Causing trouble
//
//	StepDown                      the primary steps down, another is elected
//	Kill, Stop, Start, Wipe       a member crashes, is shut down, restarts, loses its disk
//	Freeze, Thaw                  a member stops as on SIGSTOP, and continues
//	Isolate, Cut, Fault, Heal     links break, lose direction, get slow: see package fault
//	FailCommand                   the fail point failCommand
//	DiskFull, SkewClock           writes fail; a clock is wrong
//	SetPressure                   serverStatus shows load
//
// An [Action] does the same from text, for scenario files.
//
// # What it answers
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
// # What it does not answer
//
// It is not a database. There is no disk, no query planner and no index that makes a
// query faster. These are missing:
//
//   - change streams
//   - the stages $lookup, $graphLookup, $unionWith, $facet, $bucket, $bucketAuto,
//     $sortByCount, $redact, $setWindowFields, $out and $merge
//   - geo, text and bit queries, $where, most of $jsonSchema
//   - bulkWrite across collections, explain, mapReduce, dataSize
//
// What is missing is refused with the server's own error, CommandNotFound or
// NotImplemented, and the name of what is missing; nothing is ignored silently.
//
// The clock of a frozen member keeps running. An initial sync copies everything at once.
// The page docs/embedded-set.md of this module has more: faults, recordings, moods, limits.
//
// # Determinism
//
// With one seed, one script and one client at a time, all identifiers are the same in
// every run: UUIDs of collections and index builds, the ids of the set, of initial syncs
// and of processes. Ports, timestamps and the winners of elections are not: they depend
// on real time and on the order in which goroutines run.
package mongosim
