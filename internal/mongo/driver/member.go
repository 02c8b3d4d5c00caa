package driver

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/mongo"
)

// Member is a direct connection to one host, whatever its state is. It is safe for
// concurrent use; each call that is under way has a network connection of its own,
// 100 at most unless the connection string says otherwise.
type Member struct {
	host   string
	srv    *topology.Server
	sender *sender
	// patience is how long a look at a host that is down may take.
	patience time.Duration
}

var _ mongo.Caller = (*Member)(nil)

func newMember(s *Set, host string) *Member {
	srv := topology.NewServer(address.Address(host).Canonicalize(), bson.NewObjectID(), s.cfg.ConnectTimeout, s.cfg.ServerOpts...)
	// It can only fail for a server that is connected already.
	_ = srv.Connect(nil)
	return &Member{host: host, srv: srv, sender: &s.sender, patience: s.cfg.ConnectTimeout + time.Second}
}

// Host returns the host, as it was given to Set.Member.
func (m *Member) Host() string { return m.host }

// RTT returns the moving average of the time that a hello takes, zero before the
// first.
func (m *Member) RTT() time.Duration { return m.srv.RTTMonitor().EWMA() }

// Call runs a command on the host. On a member of a set a read is answered
// whatever its state is: unless the command has a read preference, or is of a
// transaction, primaryPreferred is added. A host that cannot be reached is an error
// at once, not after the selection timeout.
func (m *Member) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	conn, err := m.srv.Connection(ctx)
	if err != nil && cleared(err) {
		conn, err = m.lookAgain(ctx)
	}
	if err != nil {
		return nil, lost(ctx, m.host, err)
	}
	return m.sender.send(ctx, m.srv, conn, &cmd, true)
}

// lookAgain returns a connection to a host that was down when it was last looked
// at, after one more look.
func (m *Member) lookAgain(ctx context.Context) (*mnet.Connection, error) {
	sub, err := m.srv.Subscribe()
	if err != nil {
		return nil, ErrClosed
	}
	defer func() { _ = sub.Unsubscribe() }()
	d := <-sub.C // what is known already
	if d.Kind == description.Unknown {
		if d.LastError != nil && denied(d.LastError) && !tlsFault(d.LastError) {
			// A login that has just failed: the same would be said again.
			m.srv.RequestImmediateCheck()
			return nil, d.LastError
		}
		m.srv.RequestImmediateCheck()
		timer := time.NewTimer(m.patience)
		defer timer.Stop()
		for seen := false; !seen; {
			var open bool
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-timer.C:
				return nil, errors.New("it does not answer")
			case d, open = <-sub.C:
				if !open {
					return nil, ErrClosed
				}
			}
			// A look that another call's fault broke off says nothing.
			seen = d.Kind != description.Unknown || !errors.Is(d.LastError, context.Canceled)
		}
	}
	if d.Kind == description.Unknown {
		if d.LastError != nil {
			return nil, d.LastError
		}
		return nil, errors.New("it does not answer")
	}
	return m.srv.Connection(ctx)
}
