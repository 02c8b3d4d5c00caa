package meter

import (
	"runtime"

	"github.com/oplogrep/replicator/bench/result"
)

// Machine describes this machine; version is the program's. Unknown values are empty
// or 0.
func Machine(version string) result.Machine {
	return result.Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), Cores: runtime.GOMAXPROCS(0),
		Memory: memoryBytes(), Kernel: kernelVersion(), Go: runtime.Version(), Version: version,
	}
}
