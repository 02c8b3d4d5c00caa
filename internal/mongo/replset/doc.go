// Package replset reads the replication state of one member of a replica set: its state
// (Hello), the ends of its oplog (OldestEntry, NewestEntry), its oldest open transaction,
// and the optimes from which a new link reads and applies the log (FindStart).
//
// Each command has a single reply, without getMore. Failed commands are not retried: the
// caller decides.
package replset
