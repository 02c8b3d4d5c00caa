// Package command answers commands the way a member of a replica set does.
//
// It has no code but [New], which assembles a server from
//
//	dispatch  the common part of all commands: arguments, access control, fail points,
//	          read and write concerns, sessions, transactions, cursors, the reply
//	read      find, getMore, aggregate, count, distinct; lists and statistics
//	write     insert, update, delete, findAndModify; time-series inserts
//	ddl       create, drop, rename, collMod; indexes
//	admin     the state of the member and of the set, parameters, users and roles
//
// Code that depends neither on requests nor on members is in separate packages: indexspec
// (specifications of indexes, collations), viewdef (definitions of views), bucket
// (buckets of time-series collections), arg (parsing of arguments).
//
// The tests of all commands are in this package: they call a complete server.
package command
