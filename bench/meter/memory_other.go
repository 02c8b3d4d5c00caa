//go:build !linux

package meter

// resetPeak returns false: the peak of the resident memory cannot be reset.
func resetPeak() bool { return false }

// residentBytes returns 0: reading it takes a system library.
func residentBytes() int64 { return 0 }

// peakBytes returns 0: the peak covers the whole life of the process.
func peakBytes() int64 { return 0 }

// memoryBytes returns 0: unknown.
func memoryBytes() int64 { return 0 }
