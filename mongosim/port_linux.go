package mongosim

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
)

// reservePort takes a port by a socket that is bound and never listens; the system
// chooses port 0. Connections to it are refused, as if nothing ran there, and a
// listener can be bound as well; this works on Linux only.
func reservePort(_ context.Context, at netip.AddrPort) (*port, error) {
	family := syscall.AF_INET
	if at.Addr().Is6() {
		family = syscall.AF_INET6
	}
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	release := sync.OnceFunc(func() { _ = syscall.Close(fd) }) // nothing was written to it
	if at.Port() == 0 {
		// The system chooses before the address is shared, so that no other socket
		// has the port.
		err = bind(fd, at)
	}
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err == nil && at.Port() != 0 {
		// Remaining connections of an earlier set do not conflict; another listener
		// does.
		err = bind(fd, at)
	}
	if err != nil {
		release()
		return nil, &PortError{Addr: at.String(), Err: err}
	}
	bound, err := boundTo(fd)
	if err != nil {
		release()
		return nil, err
	}
	return &port{addr: netip.AddrPortFrom(at.Addr(), bound).String(), release: release}, nil
}

func bind(fd int, at netip.AddrPort) error {
	if at.Addr().Is6() {
		return syscall.Bind(fd, &syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
}

// boundTo returns the port that a socket is bound to.
func boundTo(fd int) (uint16, error) {
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("name of the socket: %w", err)
	}
	switch addr := name.(type) {
	case *syscall.SockaddrInet4:
		return uint16(addr.Port), nil
	case *syscall.SockaddrInet6:
		return uint16(addr.Port), nil
	}
	return 0, fmt.Errorf("name of the socket is %T", name)
}
