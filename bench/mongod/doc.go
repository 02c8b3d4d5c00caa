// Package mongod starts real mongod processes from a binary, to time a real secondary
// on the same backlog as the replicator.
//
//	primary   start ─ fill ─────────────── write the backlog ───────────────
//	secondary          join ─ sync ─ stop                     start ─ catch up
//	                                                              └ timed ┘
//
// The processes listen on loopback, without access control. Close ends them and removes
// their files.
package mongod
