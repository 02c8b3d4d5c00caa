// Package rewind lists the writes that only the old source of a promoted link has: what a
// rollback directory is to a member that rolls back.
//
// The target of a promoted link has the old source's oplog up to the recovery point S. What the old
// source has logged after S was never applied, and no process applies it: an operator decides
// which of it to write to the new source.
//
//	old source's oplog ──FetchFrom──▶ assembler ──after S──▶ scope ──▶ one Lost per operation
//	                                                                     + the document now, on both sides
//
// It reads from the link's FetchFrom on, where the oldest transaction begins that was open at S, so
// that each transaction is listed as a whole, at its commit. It writes to neither side.
//
// The package trusts that no client writes to the old source meanwhile. The new one is in use: the
// document that a Lost has of it is as it was when it was read.
package rewind
