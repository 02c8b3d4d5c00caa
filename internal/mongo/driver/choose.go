package driver

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/mongo"
)

// chooser picks a server of a topology, nil if none will do.
type chooser func(*description.Topology) *description.Server

// now returns the server to ask, as far as it is known, nil if it is not. The
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

// usable picks the server that Call asks.
func (s *Set) usable(t *description.Topology) *description.Server {
	if t.Kind == description.TopologyKindSharded {
		return s.usableRouter(t)
	}
	for i := range t.Servers {
		switch d := &t.Servers[i]; {
		case d.Kind == description.ServerKindRSPrimary,
			t.Kind == description.TopologyKindSingle && d.Kind != description.Unknown:
			return d
		}
	}
	return nil
}

// usableRouter picks the mongos that was picked before, or another one if that is
// gone.
func (s *Set) usableRouter(t *description.Topology) *description.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *description.Server
	for i := range t.Servers {
		switch d := &t.Servers[i]; {
		case d.Kind != description.ServerKindMongos:
		case d.Addr.String() == s.mongos:
			return d
		case first == nil:
			first = d
		}
	}
	if first != nil {
		s.mongos = first.Addr.String()
	}
	return first
}

// choose waits for a server. Its errors are *mongo.LostError and the cause of ctx.
func (s *Set) choose(ctx context.Context, timeout <-chan time.Time, pick chooser) (srv *topology.SelectedServer, direct bool, err error) {
	sub, err := s.topo.Subscribe()
	if err != nil {
		return nil, false, lost(ctx, "", ErrClosed)
	}
	defer func() { _ = s.topo.Unsubscribe(sub) }()
	// A check that was asked for is not made where one is under way, so it is asked
	// for again.
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

// hopeless returns the reason for which waiting for a server is of no use, nil if
// there is none: one that the driver does not speak to, and a TLS handshake that
// fails with each.
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

// unseen is the error of a search that has ended.
func (s *Set) unseen(t *description.Topology, waited time.Duration) error {
	e := &NoServerError{Want: "primary", Waited: waited.Round(time.Millisecond)}
	if s.opts.ReplicaSet() != "" {
		e.Want += " of " + s.opts.ReplicaSet()
	}
	if t.Kind == description.TopologyKindSharded {
		e.Want = "mongos"
	}
	for _, d := range t.Servers {
		e.Seen = append(e.Seen, Sight{Host: d.Addr.String(), State: d.Kind.String(), Err: d.LastError})
	}
	return e
}
