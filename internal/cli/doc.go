// Package cli is shared by both programs: it parses and runs a command line, maps errors
// to exit codes, ends a command on signals, and has the types of the flags that both use.
//
//	args ─▶ Program.Run ─▶ a command ─▶ error ─▶ exit code, message, hint
//	                          ▲
//	    signals ─▶ Ends ──────┘
//
// Results go to standard output; errors, with a hint, to standard error. Neither contains
// the passwords of connection strings. The exit codes are documented in
// docs/exit-codes.md.
package cli
