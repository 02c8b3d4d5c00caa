package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/session" //nolint:staticcheck // The driver's logins share its clock.
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/oplogrep/replicator/internal/mongo"
)

// Set is a connection to a deployment, usually a replica set, that monitors its members.
// It is safe for concurrent use.
type Set struct {
	opts   *Options
	client *options.ClientOptions
	cfg    *topology.Config
	topo   *topology.Topology
	sender sender
	// forever is never done: the driver needs it for closing.
	forever context.Context

	// other is the name of another set than the one asked for that a host has named last; nil if none has.
	other atomic.Pointer[string]

	mu      sync.Mutex
	closed  bool               // under mu
	members map[string]*member // under mu, by host
}

var _ mongo.Caller = (*Set)(nil)

// Open starts the monitoring of a deployment. It does not wait for a server: the first
// call shows whether one can be reached. For mongodb+srv it queries DNS, which ctx does
// not cancel. The Set lives until Close, not until ctx is done.
func Open(ctx context.Context, o *Options) (*Set, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d := &dialer{hosts: o.hosts}
	client, err := o.client(d)
	if err != nil {
		return nil, fmt.Errorf("mongo: open %s: %w", o, err)
	}
	s := &Set{
		opts: o, client: client, forever: context.WithoutCancel(ctx), members: map[string]*member{},
		sender: sender{
			clock:       new(session.ClusterClock), //nolint:staticcheck // The driver's logins share it.
			compressors: client.Compressors, dialer: d, throughDriver: client.TLSConfig != nil,
		},
	}
	client.SetServerMonitor(&event.ServerMonitor{ServerHeartbeatSucceeded: s.hear})
	credentials, err := newCredentials(o, client)
	if err != nil {
		return nil, fmt.Errorf("mongo: open %s: %w", o, err)
	}
	if client.Auth != nil {
		s.sender.login = credentials
	}
	s.cfg, err = topology.NewAuthenticatorConfig(s.sender.login,
		topology.WithAuthConfigClock(s.sender.clock), topology.WithAuthConfigClientOptions(client))
	if err == nil {
		s.topo, err = topology.New(s.cfg)
	}
	if err == nil {
		err = s.topo.Connect()
	}
	if err != nil {
		return nil, fmt.Errorf("mongo: open %s: %w", o, shield(err, o.uri.secrets()))
	}
	return s, nil
}

// Close closes all connections, including those of its Members, and waits until all of
// the Set's goroutines have ended. Calls in flight return a LostError.
func (s *Set) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	members := s.members
	s.members = nil
	s.mu.Unlock()
	for _, m := range members {
		_ = m.srv.Disconnect(s.forever)
	}
	_ = s.topo.Disconnect(s.forever)
	if s.client.HTTPClient != nil {
		s.client.HTTPClient.CloseIdleConnections()
	}
}

// Call runs a command on the primary or, with a standalone, a mongos or
// directConnection, on that server. If none is available it waits up to the selection
// timeout.
func (s *Set) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if srv, direct := s.now(); srv != nil {
		conn, err := srv.Connection(ctx)
		if err == nil {
			return s.sender.send(ctx, srv.Server, conn, &cmd, direct)
		}
		if err := s.final(ctx, srv.Server, err); err != nil {
			return nil, err
		}
	}
	return s.wait(ctx, cmd)
}

// wait continues Call if the first server gave no connection. Nothing has been sent.
func (s *Set) wait(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	const shortest, longest = 5 * time.Millisecond, 500 * time.Millisecond
	timer := time.NewTimer(s.opts.selection)
	defer timer.Stop()
	for pause := shortest; ; pause = min(2*pause, longest) {
		srv, direct, err := s.choose(ctx, timer.C, s.usable)
		if err != nil {
			return nil, err
		}
		conn, err := srv.Connection(ctx)
		if err == nil {
			return s.sender.send(ctx, srv.Server, conn, &cmd, direct)
		}
		if err := s.final(ctx, srv.Server, err); err != nil {
			return nil, err
		}
		s.topo.RequestImmediateCheck()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			return nil, lost(ctx, srv.Server.Description().Addr.String(), err)
		case <-time.After(pause):
		}
	}
}

// final returns the error of a call that got no connection to a server, nil if a retry
// may get one.
func (s *Set) final(ctx context.Context, srv *topology.Server, err error) error {
	d := srv.Description()
	if cleared(err) && d.LastError != nil {
		err = d.LastError // the error that cleared the pool
	}
	if ctx.Err() != nil || denied(err) || s.isClosed() {
		return lost(ctx, d.Addr.String(), err)
	}
	return nil
}

func (s *Set) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Primary returns the primary as currently known, and the id of its election. Both are
// zero if none is known.
func (s *Set) Primary() (host string, election bson.ObjectID) {
	for _, d := range s.topo.Description().Servers {
		if d.Kind == description.ServerKindRSPrimary {
			return d.Addr.String(), d.ElectionID
		}
	}
	return "", bson.ObjectID{}
}

// Hosts returns the known members, sorted: those of the configuration, including
// arbiters, except the hidden ones. Before a member has answered, they are those of the
// connection string.
func (s *Set) Hosts() []string {
	servers := s.topo.Description().Servers
	hosts := make([]string, len(servers))
	for i := range servers {
		hosts[i] = servers[i].Addr.String()
	}
	slices.Sort(hosts)
	return hosts
}

// Seeds returns the hosts of the connection string, those of its DNS record for
// mongodb+srv, and the known members. If all members are replaced at once, only the former
// may still lead to the set.
func (s *Set) Seeds() []string {
	seeds := s.Hosts()
	for _, host := range s.cfg.SeedList {
		if host = address.Address(host).Canonicalize().String(); !slices.Contains(seeds, host) {
			seeds = append(seeds, host)
		}
	}
	return seeds
}

// Direct reports whether the Set must not use other servers than the named one.
func (s *Set) Direct() bool { return s.opts.Direct() }

// Member returns the direct connection to a host, host:port, with the same credentials
// and TLS settings. The host need not be in Hosts: hidden members are not. The first call
// for a host opens the connection, without waiting for the host. It lives until the Set is closed.
func (s *Set) Member(host string) mongo.Caller {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.members[host]; ok {
		return m
	}
	m := newMember(s, host)
	if s.closed {
		_ = m.srv.Disconnect(s.forever)
	} else {
		s.members[host] = m
	}
	return m
}
