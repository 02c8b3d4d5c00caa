// Package auth is the access control of the embedded set: authentication of
// connections, and authorization of their commands.
//
//	saslStart ─▶ Start ─▶ conversation ─▶ saslContinue ─▶ Continue ─▶ logged in
//	                                                                     │
//	every command ─▶ Check(action, database, collection) ◀───────────────┘
//
// A login is SCRAM-SHA-256 or SCRAM-SHA-1. The user __system of the database
// local has the keyfile's content, without its white space, as password and may
// do everything, as other members of a real set do.
//
// Roles are the built-in ones of the server's major version, each with exactly the actions
// on the resources that the server's own tables give it (builtin.go). createRole makes
// custom roles.
//
// Users and roles are kept in the Manager's memory and not in admin.system.users: they are
// not replicated, not rolled back, and lost with the Manager. Members that share a Manager
// share their users. There is no localhost exception: without any user, no login succeeds.
package auth
