// Package servererr is a server's error: a code, its name, a message, labels, and for
// some codes further fields. [Classify] says what kind of error it is; every layer maps
// kinds, never codes, to what it does.
//
// The embedded replica set makes its errors with this package too, so that an error
// looks the same whoever reports it.
package servererr
