//go:build !linux

package mongosim

import (
	"context"
	"net"
	"net/netip"
)

// reservePort takes a port that is free now. On this system a port cannot be
// reserved without listening.
func reservePort(ctx context.Context, at netip.AddrPort) (*port, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, &PortError{Addr: at.String(), Err: err}
	}
	return &port{addr: l.Addr().String(), release: func() {}}, l.Close()
}
