// Package race tells tests whether the race detector is on: under it they do less of
// the same, and nothing that measures.
package race
