// Package testkit has no code of its own. Its subpackages are shared by tests and
// cmd/replicator-lab, and not linked into bin/replicator:
//
//	corpus      the recordings in testdata/corpus: loading them, applying them to the oracle
//	memstore    the oracle: applies oplog entries to collections in memory, slowly and obviously
//	transcript  sends the recorded commands of a real server again and compares the replies
//	mirrored    plays a recording as the source of a running link
//	client      connects a test to a set
//	compare     compares the data, options and indexes of two clusters
//	bsongen     generates random BSON values and documents
//	traffic     a workload that writes to a set, at a rate
//	simcaller   sends commands to an embedded set without a network, with faults
//	mongotest   starts real servers, if there are any
//	must        ends a test after an error
//	launch      runs a mongod binary as a process
//	race        reports whether the race detector is on
package testkit
