//go:build !unix

package meter

import "time"

// cpuTime is 0: it cannot be told.
func cpuTime() (time.Duration, error) { return 0, nil }
