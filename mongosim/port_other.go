//go:build !linux

package mongosim

import (
	"context"
	"net"
)

// reservePort picks a port that is free now. Here it cannot be held while nobody
// listens.
func reservePort(ctx context.Context) (*port, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &port{addr: l.Addr().String(), release: func() {}}, l.Close()
}
