package mongosim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// rebindTime is how long a restarted member retries binding its port.
const rebindTime = 5 * time.Second

// PortError is the error of Start and AddMember if a member cannot bind its port: it
// is in use, or the address is not of this machine.
type PortError struct {
	// Addr is the host:port.
	Addr string
	Err  error
}

// Error implements error.
func (e *PortError) Error() string { return fmt.Sprintf("reserve %s: %v", e.Addr, e.Err) }

// Unwrap returns the system's error.
func (e *PortError) Unwrap() error { return e.Err }

// validatePorts checks the address and the ports of the options.
func (o *Options) validatePorts() error {
	ip, err := netip.ParseAddr(o.Address)
	if err != nil || ip.Zone() != "" {
		return fmt.Errorf("mongosim: address %q is not an IP address", o.Address)
	}
	var faults []error
	if ip.IsUnspecified() && o.Hostname == "" {
		faults = append(faults, fmt.Errorf("mongosim: no client can connect to %s: Hostname is missing", o.Address))
	}
	if last := o.Port + o.Members - 1; o.Port < 0 || o.Port > 0 && last > math.MaxUint16 {
		faults = append(faults, fmt.Errorf("mongosim: ports %d to %d are not from 1 to 65535", o.Port, last))
	}
	return errors.Join(faults...)
}

// reserve takes the port of a member.
func (o *Options) reserve(ctx context.Context, id int) (*port, error) {
	ip, err := netip.ParseAddr(o.Address)
	if err != nil {
		return nil, err
	}
	number := 0 // the system chooses
	if o.Port > 0 {
		number = o.Port + id
	}
	if number > math.MaxUint16 {
		return nil, &PortError{Addr: net.JoinHostPort(o.Address, strconv.Itoa(number)), Err: errors.New("there is no such port")}
	}
	return reservePort(ctx, netip.AddrPortFrom(ip, uint16(number)))
}

// port is a port that belongs to a member for as long as its set lives, whether it
// listens or not: otherwise, while the member is down, the system might assign its
// port to another process.
type port struct {
	addr string
	// release releases the port.
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
