package meter

import (
	"fmt"
	"os"
	"runtime/pprof"
)

// Profile writes a CPU profile to a file until stop is called. A process can have one at a
// time.
func Profile(file string) (stop func() error, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("write the CPU profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close() // it is empty
		return nil, fmt.Errorf("start a CPU profile: %w", err)
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			return fmt.Errorf("write the CPU profile: %w", err)
		}
		return nil
	}, nil
}
