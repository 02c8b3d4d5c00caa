package mongosim

import (
	"context"
	"net"
	"time"
)

// rebindTime is for how long a restarted member tries to get its port back.
const rebindTime = 5 * time.Second

// port is a loopback port that belongs to a member for as long as its set lives,
// whether it listens or not: otherwise, while the member is down, the system might
// give its port to somebody else.
type port struct {
	addr string
	// release gives the port back.
	release func()
}

// listen listens on the port. The connections of an earlier listener may still be
// in the way for a moment.
func (p *port) listen(ctx context.Context) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, rebindTime)
	defer cancel()
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.addr)
		if err == nil {
			return l, nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
