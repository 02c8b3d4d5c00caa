// Command replicator mirrors a MongoDB replica set into another one by following
// its oplog.
//
//	replicator run --source URI --target URI --link NAME
//	replicator resync --target URI --link NAME --namespace DB.COLLECTION
//	replicator throttle --target URI --link NAME --max-bytes-per-second SIZE
//	replicator links --target URI
//	replicator oplog --source URI | FILE.bson
//	replicator member add|remove --source URI --host NAME:PORT
//
// What is not for production is another program, replicator-lab: this one links no
// embedded replica set, nothing that draws charts and nothing that reads profiles.
//
// This package reads settings, connects, makes the startup checks and hands over
// to package pipeline, which runs the link and says what an error means:
//
//	flag ┐
//	env  ├─▶ settings ─▶ runFlags ─▶ plan ─▶ preflight ─▶ pipeline ─▶ exit code
//	file ┘                                                   │
//	                              log, /status, /metrics ◀───┘
//
// The first signal makes a run drain, the second stops it. Exit codes are in
// docs/exit-codes.md, settings in docs/configuration.md.
package main
