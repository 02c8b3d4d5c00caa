// Package mongod starts real servers from a binary, to time a real secondary on the
// backlog that the replicator is timed on.
//
//	primary   start ─ fill ─────────────── write the backlog ───────────────
//	secondary          join ─ sync ─ stop                     start ─ catch up
//	                                                              └ timed ┘
//
// All of it is on loopback, without access control, and gone when it is closed.
package mongod
