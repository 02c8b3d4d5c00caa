package driver

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/mongo"
)

// chooser selects a server of a topology, nil if none is suitable.
type chooser func(*description.Topology) *description.Server

// now returns the server to send a command to, nil if none is known at present. The
// driver's own selection would copy all descriptions on each call.
func (s *Set) now() (srv *topology.SelectedServer, direct bool) {
	t := s.topo.Description()
	return s.find(&t, s.usable)
}

func (s *Set) find(t *description.Topology, pick chooser) (srv *topology.SelectedServer, direct bool) {
	d := pick(t)
	if d == nil || t.CompatibilityErr != nil {
		return nil, false
	}
	found, err := s.topo.FindServer(*d)
	if err != nil {
		return nil, false
	}
	return found, t.Kind == description.TopologyKindSingle
}

// usable selects the server for Call. A mongos is one, so that the caller can find out that
// it is not a member of a set.
func (s *Set) usable(t *description.Topology) *description.Server {
	for i := range t.Servers {
		switch d := &t.Servers[i]; {
		case d.Kind == description.ServerKindRSPrimary, d.Kind == description.ServerKindMongos,
			t.Kind == description.TopologyKindSingle && d.Kind != description.Unknown:
			return d
		}
	}
	return nil
}

// choose waits for a server. Its errors are *mongo.LostError and the cause of ctx.
func (s *Set) choose(ctx context.Context, timeout <-chan time.Time, pick chooser) (srv *topology.SelectedServer, direct bool, err error) {
	sub, err := s.topo.Subscribe()
	if err != nil {
		return nil, false, lost(ctx, "", ErrClosed)
	}
	defer func() { _ = s.topo.Unsubscribe(sub) }()
	// A requested check is not made while another one runs, so it is requested
	// periodically.
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	began := time.Now()
	t := s.topo.Description()
	for {
		if srv, direct := s.find(&t, pick); srv != nil {
			return srv, direct, nil
		}
		if err := hopeless(&t); err != nil {
			return nil, false, lost(ctx, "", err)
		}
		s.topo.RequestImmediateCheck()
		select {
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		case next, open := <-sub.Updates:
			if !open {
				return nil, false, lost(ctx, "", ErrClosed)
			}
			t = next
		case <-again.C:
			t = s.topo.Description()
		case <-timeout:
			return nil, false, &mongo.LostError{Err: s.unseen(&t, time.Since(began))}
		}
	}
}

// hopeless returns the reason why waiting for a server is pointless, nil if there is
// none: an incompatible server, or a TLS handshake that fails with every server.
func hopeless(t *description.Topology) error {
	if t.CompatibilityErr != nil {
		return t.CompatibilityErr
	}
	for i := range t.Servers {
		if d := &t.Servers[i]; d.Kind != description.Unknown || d.LastError == nil || !tlsFault(d.LastError) {
			return nil
		}
	}
	if len(t.Servers) == 0 {
		return nil
	}
	return &AuthError{Host: t.Servers[0].Addr.String(), Err: t.Servers[0].LastError}
}

// hear records the name of a host's set, if it is not the one that the connection string asks for: the topology drops such
// a host, and what it has said.
func (s *Set) hear(e *event.ServerHeartbeatSucceededEvent) {
	if name, want := e.Reply.SetName, s.opts.parsed.ReplicaSet; name != "" && want != "" && name != want {
		s.other.Store(&name)
	}
}

// unseen returns the error of a server selection that timed out.
func (s *Set) unseen(t *description.Topology, waited time.Duration) error {
	e := &NoServerError{Want: "primary", Waited: waited.Round(time.Millisecond)}
	if set := s.opts.parsed.ReplicaSet; set != "" {
		e.Want += " of " + set
		e.Set = set
		if other := s.other.Load(); other != nil {
			e.Other = *other
		}
	}
	if t.Kind == description.TopologyKindSharded {
		e.Want = "mongos"
	}
	for _, d := range t.Servers {
		e.Seen = append(e.Seen, Sight{Host: d.Addr.String(), State: d.Kind.String(), Err: d.LastError})
	}
	return e
}
