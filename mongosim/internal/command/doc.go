// Package command answers commands the way a member of a replica set does.
//
// It has no code but [New], which puts a server together of
//
//	dispatch  what is the same for all commands: arguments, access control, fail points,
//	          read and write concerns, sessions, transactions, cursors, the reply
//	read      find, getMore, aggregate, count, distinct; lists and statistics
//	write     insert, update, delete, findAndModify; time-series inserts
//	ddl       create, drop, rename, collMod; indexes
//	admin     the state of the member and of the set, parameters, users and roles
//
// What knows neither requests nor members is in packages of its own: indexspec
// (specifications of indexes, collations), viewdef (definitions of views), bucket
// (buckets of time-series collections), arg (how arguments are read).
//
// The tests of this package are those of the commands: they call a server that has
// all of them.
package command
