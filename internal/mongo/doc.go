// Package mongo is the one layer that talks to servers: commands, sessions,
// transactions, retryable writes, and retries. A command goes in as raw BSON, and the
// raw reply comes out. A call fails in one of two ways:
//
//	*servererr.Error   the server returned an error: the command had no effect, unless
//	                   its documentation says otherwise
//	*LostError         no reply: whether the command was executed is unknown
//
// Write errors and write concern errors are part of a reply that is otherwise good; see
// WriteErrors and ConcernError. [Retry] is the only retry loop, and [DispositionOf] returns
// what can be retried. servererr.Classify returns the kind of an error.
//
// Package internal/mongo/driver implements Caller for real servers; tests have fakes.
package mongo
