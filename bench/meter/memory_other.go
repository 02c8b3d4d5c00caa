//go:build !linux

package meter

// resetPeak tells that the mark of the resident memory cannot be reset.
func resetPeak() bool { return false }

// residentBytes is 0: it cannot be told without a library of the system.
func residentBytes() int64 { return 0 }

// peakBytes is 0, for the mark is that of the process's whole life.
func peakBytes() int64 { return 0 }

// memoryBytes is 0: it cannot be told.
func memoryBytes() int64 { return 0 }
