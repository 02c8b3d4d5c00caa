//go:build !linux

package driver

import (
	"net"
	"time"
)

// limitUnacknowledged does nothing here: the system's own limits apply.
func limitUnacknowledged(net.Conn, time.Duration) {}
