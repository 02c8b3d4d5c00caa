// Command replicator mirrors a MongoDB replica set into another one by following
// its oplog.
//
//	replicator run --source URI --target URI --link NAME
//	replicator agent --links FILE
//	replicator resync --target URI --link NAME --namespace DB.COLLECTION
//	replicator throttle --target URI --link NAME --max-bytes-per-second SIZE
//	replicator verify --source URI --target URI
//	replicator links --target URI
//	replicator oplog --source URI | FILE.bson
//	replicator member add|remove --source URI --host NAME:PORT
//
// Tools that are not for production are in another program, replicator-lab: this one does
// not link the embedded replica set or the benchmarks.
//
// This package reads settings, connects, runs the startup checks, and starts package
// pipeline, which runs the link and classifies errors:
//
//	flag ┐
//	env  ├─▶ settings ─▶ runFlags ─▶ plan ─▶ preflight ─▶ pipeline ─▶ exit code
//	file ┘                                                   │
//	                              log, /status, /metrics ◀───┘
//
// The first signal drains a run, the second stops it. Exit codes are in
// docs/exit-codes.md, settings in docs/configuration.md.
package main
