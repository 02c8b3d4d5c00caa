// Package mongo is how the rest of the program speaks to a server: a command goes
// in as raw BSON, the raw reply comes out, and there are two ways to fail.
//
//	*servererr.Error   the server refused: nothing was done, unless the command
//	                   says otherwise
//	*LostError         no answer came: whether it was done is not known
//
// Write errors and write concern errors are part of a reply that is otherwise
// good, and are read with WriteErrors and ConcernError.
//
// Package internal/mongo/driver is the real Caller. Tests give stages one of their own.
package mongo
