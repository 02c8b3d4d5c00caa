package meter

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// resetPeak sets the mark of the resident memory to what is resident now, and tells
// whether that worked.
func resetPeak() bool { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600) == nil }

// residentBytes is what is resident now, 0 if that cannot be told.
func residentBytes() int64 { return kilobytes("/proc/self/status", "VmRSS") }

// peakBytes is the mark of the resident memory, 0 if that cannot be told.
func peakBytes() int64 { return kilobytes("/proc/self/status", "VmHWM") }

// memoryBytes is the machine's memory, 0 if that cannot be told.
func memoryBytes() int64 { return kilobytes("/proc/meminfo", "MemTotal") }

// cpuName is the processor's name, empty if that cannot be told.
func cpuName() string { return field("/proc/cpuinfo", "model name") }

// kernelVersion is the system's version, empty if that cannot be told.
func kernelVersion() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease") // without it it is not known
	// What a build adds to the number says where it came from, and nothing of speed.
	number, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return number
}

// kilobytes reads a field such as "VmRSS:  1234 kB", in bytes.
func kilobytes(file, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(field(file, name), " kB"), 10, 64) // 0 is what it is then
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
