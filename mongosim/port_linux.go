package mongosim

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// reservePort takes a free port by a socket that is bound and never listens. Who
// connects to it is refused, as by a host where nobody runs, and a listener can be
// bound beside it; that is so on Linux only.
func reservePort(context.Context) (*port, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	release := sync.OnceFunc(func() { _ = syscall.Close(fd) }) // nothing was written to it
	number, err := bindLoopback(fd)
	if err != nil {
		release()
		return nil, err
	}
	return &port{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(number)), release: release}, nil
}

func bindLoopback(fd int) (number int, err error) {
	// The system picks the port while the address is not yet for sharing, so that it
	// is nobody else's.
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, fmt.Errorf("bind a port of 127.0.0.1: %w", err)
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, fmt.Errorf("share the port: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("name of the socket: %w", err)
	}
	addr, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("name of the socket is %T", name)
	}
	return addr.Port, nil
}
