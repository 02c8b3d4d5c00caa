//go:build !unix

package meter

import "time"

// cpuTime returns 0: unknown.
func cpuTime() (time.Duration, error) { return 0, nil }
