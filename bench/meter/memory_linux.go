package meter

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// resetPeak resets the peak of the resident memory to its current size, and reports
// whether that worked.
func resetPeak() bool { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600) == nil }

// residentBytes returns the resident memory, 0 if unknown.
func residentBytes() int64 { return kilobytes("/proc/self/status", "VmRSS") }

// peakBytes returns the peak of the resident memory, 0 if unknown.
func peakBytes() int64 { return kilobytes("/proc/self/status", "VmHWM") }

// memoryBytes returns the machine's memory, 0 if unknown.
func memoryBytes() int64 { return kilobytes("/proc/meminfo", "MemTotal") }

// cpuName returns the processor's name, empty if unknown.
func cpuName() string { return field("/proc/cpuinfo", "model name") }

// kernelVersion returns the system's version, empty if unknown.
func kernelVersion() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease") // without it it is not known
	// Suffixes of the version name the build's origin and do not affect speed.
	number, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return number
}

// kilobytes reads a field such as "VmRSS:  1234 kB", in bytes.
func kilobytes(file, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(field(file, name), " kB"), 10, 64) // 0 then
	return n << 10
}

// field returns the first field of a name in a file of lines "name: value".
func field(file, name string) string {
	text, _ := os.ReadFile(file) // without it there is no such field
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
