// Package mongotest starts real MongoDB replica sets for tests, and injects faults.
//
// If no servers are configured, the test is skipped with a line that names the
// variables to set. The environment alone selects the servers:
//
//	MONGOD=/path/to/mongod   processes of this binary on loopback
//	REPLICATOR_DOCKER=1      containers; MONGO_VERSIONS chooses the images, as in
//	                         MONGO_VERSIONS=5.0,8.0
//
// MONGOD wins where both are set. Once one of them is set nothing is skipped
// quietly: a binary that does not run, a Docker engine that does not answer or
// a set that does not elect a primary fails the test, with the end of the
// server's log.
//
// A set is ready when [Start] returns: one member is a writable primary and all
// others are secondaries. With [Options.Users] it has access control; the members
// have a keyfile then, and one more user, which may do everything.
//
// In Docker a set of one member without users is a container with a port of its
// own. Any other set is a container for each member, in the network of this
// machine, so that members and clients know it by one address: that is for Linux.
//
// A set lives in the test's temporary folder and ends with the test. A test binary
// that is killed, or that panics at its time limit, runs no cleanup: a container is
// then removed by Testcontainers' reaper, a process stays until it is killed by
// hand.
package mongotest
