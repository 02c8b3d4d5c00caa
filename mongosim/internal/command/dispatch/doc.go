// Package dispatch executes commands: it has the parts that are common to all of them.
//
// # One command
//
//	wire.Handler ─▶ Handle ─┐
//	other members ─▶ Call ──┴▶ dispatch ─▶ Spec.Run ─▶ reply
//
// Dispatch executes these steps in the server's order: look up the name, refuse
// unknown arguments, access control, fail points, the rules of sessions and
// transactions, whether this member can run the command in its state, the time limit,
// the read concern, the session's checkout; then the command; then the write concern
// and the fields that every reply has. A command is a [Spec]; packages read, write,
// ddl and admin list theirs, and those of sessions, transactions and fail points are
// here.
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
// The state of a session is read from config.transactions when the session is first
// used, and again after a rollback.
//
// # Locks
//
// The store's lock is the outermost one: it is acquired by opwrite.Path.Write or
// storage.Store.Read while no other lock is held. Session.mu and the mutexes of
// tables are innermost: no other lock is acquired while one of them is held.
//
// The bodies of commands have to be valid BSON, which package wire has checked.
package dispatch
