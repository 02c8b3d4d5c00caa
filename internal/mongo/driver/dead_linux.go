package driver

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not have on every architecture.
const tcpUserTimeout = 0x12

// limitUnacknowledged makes the system end a connection on which something that was sent is not acknowledged for a
// time. Without it, it would transmit again for about a quarter of an hour, and send no keep-alive probes meanwhile.
func limitUnacknowledged(c net.Conn, limit time.Duration) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // It is closed.
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds())) // without it the system's limits apply
	})
}
