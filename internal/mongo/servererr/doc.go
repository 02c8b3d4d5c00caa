// Package servererr represents a server's error: a code, its name, a message, labels, and
// for some codes further fields. [Classify] returns the kind of an error; every layer maps
// kinds, never codes, to its reaction.
//
// The embedded replica set creates its errors with this package too.
package servererr
