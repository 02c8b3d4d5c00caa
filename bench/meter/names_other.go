//go:build !linux && !darwin

package meter

// cpuName returns an empty string: unknown.
func cpuName() string { return "" }

// kernelVersion returns an empty string: unknown.
func kernelVersion() string { return "" }
