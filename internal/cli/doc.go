// Package cli is what the programs of this project have in common: how a command
// line is parsed and run, what an error ends the program with, how signals end a
// command, and the types of flags that both programs have.
//
//	args ─▶ Program.Run ─▶ a command ─▶ error ─▶ exit code, message, hint
//	                          ▲
//	    signals ─▶ Ends ──────┘
//
// Results go to standard output; complaints, with a hint of what to do, to standard
// error. Passwords of connection strings are in neither. The exit codes are fixed;
// they are in docs/exit-codes.md.
package cli
