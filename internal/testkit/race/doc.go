// Package race reports whether the race detector is on: tests then make shorter runs, and
// skip measurements.
package race
