// Package dispatch carries out commands: everything about one but the command itself.
//
// # One command
//
//	wire.Handler ─▶ Handle ─┐
//	other members ─▶ Call ──┴▶ dispatch ─▶ Spec.Run ─▶ reply
//
// Dispatch does what is the same for all commands, in the server's order: look
// up the name, check the arguments that it does not know, access control, fail
// points, the rules of sessions and transactions, whether this member may run
// it in its state, the time limit, the read concern, the session's checkout; then
// the command; then the write concern and the fields that every reply has. A
// command is a [Spec]; packages read, write, ddl and admin list theirs, and those of
// sessions, transactions and fail points are here.
//
// # Sessions and transactions
//
// A session is checked out by one command with a txnNumber at a time; another one
// waits. An open transaction belongs to its session:
//
//	        startTransaction              commitTransaction
//	none ───────────────────▶ in progress ──────────────────▶ committed
//	                           │   │                              ▲
//	          an error, abort, │   │ prepareTransaction           │
//	          step-down, kill  │   ▼                              │
//	                           │ prepared ────────────────────────┘
//	                           ▼   │ abort
//	                        aborted◀
//
// What a session has done before is read from config.transactions when the
// session is met first, and again after a rollback.
//
// # Locks
//
// The store's lock is the outermost one: it is taken through opwrite.Path.Write
// or storage.Store.Read with no other lock taken. Session.mu and the mutexes of
// tables are innermost: nothing else is called with one of them locked.
//
// The bodies of commands have to be valid BSON, which package wire has checked.
package dispatch
