// Package ends are the two ends of what is measured: a source and a target that
// cost nothing, so that the limit is ours; embedded sets; and whatever a connection
// string names.
package ends
