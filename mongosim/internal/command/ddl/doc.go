// Package ddl has the commands that change the catalog: create, drop, dropDatabase,
// renameCollection, collMod, convertToCapped, createIndexes and dropIndexes.
//
// Options are checked as the server's version does that is played, and the oplog
// entry is the one that this version writes.
package ddl
