// Package auth is the access control of the embedded set: who a connection is,
// and what it may do.
//
//	saslStart ─▶ Start ─▶ conversation ─▶ saslContinue ─▶ Continue ─▶ logged in
//	                                                                     │
//	every command ─▶ Check(action, database, collection) ◀───────────────┘
//
// A login is SCRAM-SHA-256 or SCRAM-SHA-1. The user __system of the database
// local has the keyfile's content, without its white space, as password and may
// do everything, as other members of a real set do.
//
// Roles are the server's built-in ones of its major version, each with the actions on
// the resources that the server's own tables give it, so that what a client with these
// roles may do here it may do there, and what it may not it may not (builtin.go).
// createRole makes roles of one's own.
//
// Users are kept in the Manager's memory and not in admin.system.users: they are
// not replicated, not rolled back, and those that createUser has made are gone with
// the Manager, as are roles. Members that share a Manager share their users. There is no
// localhost exception: without any user, nobody can log in.
package auth
