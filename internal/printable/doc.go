// Package printable makes text fit a line of a terminal, whatever somebody has
// written to a database: names, ids and the messages that quote them may hold
// line feeds, escape sequences of terminals and bytes that are no text.
package printable
