//go:build !linux && !darwin

package meter

// cpuName is empty: it cannot be told.
func cpuName() string { return "" }

// kernelVersion is empty: it cannot be told.
func kernelVersion() string { return "" }
