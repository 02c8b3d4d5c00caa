// Package mongosim is not a database: it is a replica set inside the process, for
// tests and for the demo, that speaks MongoDB's wire protocol and behaves like the
// real one where replication can tell the difference.
//
//	set, err := mongosim.Start(ctx, mongosim.Options{Members: 3, Dialect: "7.0", Seed: 1})
//	defer set.Close()
//	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()))
//
// In a test, StartTest closes the set by itself. A set is hurt through its
// methods, or by [Action] values that a scenario file can hold.
//
// # What it is
//
// Each member listens on a loopback port of its own, keeps its data in memory, has
// a term and a vote, writes or pulls a true oplog, and is rolled back when its
// entries lost. Ordinary drivers and tools connect to it. Recorded transcripts of
// a real server are replayed against it, and its replies and its oplog compared:
// package transcript lists what differs and why.
//
//	driver ──TCP──▶ wire ──▶ command ──▶ opwrite ──▶ storage
//	                 ▲ fault    │  ▲                     ▲
//	                            ▼  │                     │ replay
//	                           repl ◀── transport ──▶ the other members
//
//	wire      frames                 command   what a command answers
//	fault     hurt links             opwrite   a primary's writes and their entries
//	auth      users and roles        replay    entries carried out on a store
//	repl      states, elections      storage   data, at every time that counts
//
// # What a seed decides
//
// With one seed, one script and one client at a time, all identifiers come out the
// same: UUIDs of collections and index builds, the set's id, those of initial syncs
// and of processes. Ports, timestamps and who wins an election do not: they depend
// on real time and on the order in which goroutines run.
//
// # What it is not
//
// There is no disk, no query planner and no index that makes a query faster:
// indexes are constraints. Nothing is tuned for much data. What it does not know
// it refuses with the server's own error, CommandNotFound or NotImplemented with
// the name of what is missing; it never pretends.
//
// A frozen member differs from a stopped process: its own clock goes on. The copy
// of an initial sync is taken at once and not collection by collection. Hosts of the
// configuration that are not of this process are called without a login, so that
// with access control a tool that plays a member must let anybody in.
package mongosim
