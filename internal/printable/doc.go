// Package printable makes text from a database safe for a line of a terminal: names,
// ids and the messages that quote them may contain line feeds, escape sequences of
// terminals and invalid UTF-8.
package printable
