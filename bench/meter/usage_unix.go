//go:build unix

package meter

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time of the process, in user and system mode.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
