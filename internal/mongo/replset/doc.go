// Package replset asks one member of a replica set what only a member can answer:
// what it is (Hello), the ends of its oplog (Oldest, Newest), its oldest open
// transaction, and where the log has to be read and applied from by a link that
// begins now (FindStart).
//
// All of it is read with commands that one reply answers. A command that fails is
// not sent again: whether that helps is for the caller to say.
package replset
