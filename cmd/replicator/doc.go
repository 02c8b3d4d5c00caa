// Command replicator follows the oplog of a MongoDB replica set. What it can do
// so far is to prove itself against recordings of what a real server wrote:
//
//	replicator corpus [DIR]
//
// Its exit codes are in docs/exit-codes.md.
package main
