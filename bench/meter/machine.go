package meter

import (
	"runtime"

	"github.com/oplogrep/replicator/bench/result"
)

// Machine says what this is; version is the program's. What cannot be told is empty,
// or 0.
func Machine(version string) result.Machine {
	return result.Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), Cores: runtime.GOMAXPROCS(0),
		Memory: memoryBytes(), Kernel: kernelVersion(), Go: runtime.Version(), Version: version,
	}
}
