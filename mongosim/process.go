package mongosim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/command"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// noopInterval is the idle time after which a primary writes a no-op entry, as
// the server's does, to show followers that it is alive.
const noopInterval = 10 * time.Second

// Keys of log records.
const (
	keyMember = "member"
	keyHost   = "host"
	keyRemote = "remote"
	keyError  = "error"
)

// process is one run of a member, from start to stop.
type process struct {
	ctx       context.Context //nolint:containedctx // the lifetime of the run, ended by stop
	cancel    context.CancelCauseFunc
	listener  net.Listener
	node      *repl.Node
	path      *opwrite.Path
	server    *dispatch.Server
	done      sync.WaitGroup
	transport *transport

	// mu guards clients, the context of all client connections, and hangUp, which
	// cancels it.
	mu      sync.Mutex
	clients context.Context //nolint:containedctx // ended by a rollback or stop
	hangUp  context.CancelCauseFunc
}

func (m *Member) newProcess() (_ *process, err error) {
	p := &process{transport: &transport{from: m}}
	p.ctx, p.cancel = context.WithCancelCause(m.set.ctx)
	defer func() {
		if err != nil {
			p.cancel(err)
		}
	}()
	p.clients, p.hangUp = context.WithCancelCause(p.ctx)
	opts := &m.set.opts
	log := opts.Log.With(keyMember, m.name)
	p.node, err = repl.New(repl.Config{
		Host: m.Host(), SetName: opts.SetName, Store: m.disk(), Dialect: opts.dialect(),
		Transport: p.transport,
		Clone:     func(ctx context.Context, host string) (*storage.Store, error) { return m.set.clone(ctx, m, host) },
		Seed:      opts.Seed, Name: fmt.Sprintf("%s run %d", m.name, m.runs), Now: m.now, Log: log,
		HeartbeatInterval: opts.HeartbeatInterval, ElectionTimeout: opts.ElectionTimeout, JournalDelay: opts.JournalDelay,
		NoopInterval: noopInterval, Played: opts.played(), Unclean: m.unclean,
		Hooks: repl.Hooks{
			SteppedUp:   func(term int64, prepared []opwrite.Prepared) { p.server.SteppedUp(term, prepared) },
			SteppedDown: func() { p.server.SteppedDown() },
			RollingBack: p.hangUpAll,
			RolledBack:  func() { p.server.RolledBack() },
		},
	})
	if err != nil {
		return nil, err
	}
	p.path, err = opwrite.New(opwrite.Config{
		Store: m.disk(), Dialect: opts.dialect(), Host: m.Host(),
		Term: p.node.WriteTerm, Now: m.now, NewUUID: m.set.newUUID, OnWrite: p.node.Wrote,
		ClusterTime: func() bson.Timestamp { return p.server.ClusterTime() },
	})
	if err != nil {
		return nil, err
	}
	p.server, err = command.New(dispatch.Config{
		Host: m.Host(), Dialect: opts.dialect(), Store: m.disk(), Path: p.path, Node: p.node, Auth: m.set.auth,
		Now: m.now, NewUUID: m.set.newUUID, Log: log,
		DefaultReadConcern: opts.DefaultReadConcern, TransactionLifetime: opts.TransactionLifetime, Seed: opts.Seed, Moods: m.set.temper,
	})
	if err != nil {
		return nil, err
	}
	if pressure := m.pressure.Load(); pressure != nil {
		p.server.SetPressure(*pressure)
	}
	if p.listener, err = m.port.listen(p.ctx); err != nil {
		p.server.Close()
		return nil, err
	}
	return p, nil
}

// errRollingBack is the cause of cancelled client commands when a rollback
// begins.
var errRollingBack = servererr.New(servererr.InterruptedDueToReplStateChange, "operation was interrupted")

// connected returns the context of new client connections.
func (p *process) connected() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clients
}

// hangUpAll closes all connections of clients, as a rollback does.
func (p *process) hangUpAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hangUp(errRollingBack)
	p.clients, p.hangUp = context.WithCancelCause(p.ctx)
}

// expire removes expired documents periodically until the process ends.
func (m *Member) expire(p *process) {
	if m.set.opts.TTLInterval < 0 {
		return
	}
	tick := time.NewTicker(m.set.opts.TTLInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		// A primary that has stepped down meanwhile leaves the rest to the next one.
		if _, err := p.server.RemoveExpired(p.ctx); err != nil && p.ctx.Err() == nil {
			m.set.opts.Log.Debug("expired documents stay", keyHost, m.Host(), keyError, err)
		}
	}
}

// accept serves clients until the listener is closed.
func (m *Member) accept(p *process) {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { m.serve(p, conn) })
	}
}

// serve answers one client. How a connection ended concerns only the client.
func (m *Member) serve(p *process, conn net.Conn) {
	faulty := m.set.net.Conn(m.name, clientName, conn)
	defer faulty.Close() //nolint:errcheck // Serve has closed it, or the client has gone
	c := p.server.NewConn(conn.RemoteAddr().String())
	defer p.server.CloseConn(c)
	if err := wire.Serve(p.connected(), faulty, p.server.Handler(c)); err != nil && p.ctx.Err() == nil {
		m.set.opts.Log.Debug("connection ended", keyHost, m.Host(), keyRemote, c.Remote, keyError, err)
	}
}
