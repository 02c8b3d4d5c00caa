// Package ends provides the sources and targets of measurements: a source and a target
// that cost next to nothing, so that only the program's own cost is measured; embedded
// sets; and clusters named by a connection string.
package ends
