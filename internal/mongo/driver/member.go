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

// member is a direct connection to one host, whatever its state. It is safe for
// concurrent use; each call in flight has a network connection of its own, 100 at most
// unless the connection string sets another limit.
type member struct {
	host   string
	srv    *topology.Server
	sender *sender
	// patience is how long a check of a host that is down may take.
	patience time.Duration
}

var _ mongo.Caller = (*member)(nil)

func newMember(s *Set, host string) *member {
	srv := topology.NewServer(address.Address(host).Canonicalize(), bson.NewObjectID(), s.cfg.ConnectTimeout, s.cfg.ServerOpts...)
	// It only fails for a server that is connected already.
	_ = srv.Connect(nil)
	return &member{host: host, srv: srv, sender: &s.sender, patience: s.cfg.ConnectTimeout + time.Second}
}

// Call implements mongo.Caller. It runs a command on the host. Secondaries answer reads, too: unless the command has
// a read preference, or belongs to a transaction, Call adds primaryPreferred. If the host
// is down, Call returns an error at once, not after the selection timeout.
func (m *member) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
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

// lookAgain returns a connection to a host that was down at its last check, after
// another check.
func (m *member) lookAgain(ctx context.Context) (*mnet.Connection, error) {
	sub, err := m.srv.Subscribe()
	if err != nil {
		return nil, ErrClosed
	}
	defer func() { _ = sub.Unsubscribe() }()
	d := <-sub.C // the known state
	if d.Kind == description.Unknown {
		if d.LastError != nil && denied(d.LastError) && !tlsFault(d.LastError) {
			// The authentication has just failed: another check would fail, too.
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
			// A check that was canceled by an error of another call has no result.
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
