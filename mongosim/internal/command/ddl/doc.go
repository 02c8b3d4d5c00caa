// Package ddl has the commands that change the catalog: create, drop, dropDatabase,
// renameCollection, collMod, convertToCapped, createIndexes and dropIndexes.
//
// Options are checked, and oplog entries written, as in the emulated server version.
package ddl
