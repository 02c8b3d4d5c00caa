package ends

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
)

// nullCommand is the command that arms and queries a null server.
const nullCommand = "replicatorNull"

// Null is a server on loopback that acknowledges every command as if it had done it,
// with the right counts. Until Arm it passes everything to an embedded set (its
// backend), so that a link can be made; after that it stores no document but those
// of a link's lanes, in memory.
//
// Armed, it answers insert, update, delete and the end of a transaction at once, and
// a find with nothing. Everything else still goes to the backend: commands that
// list, create and drop collections. It reads every byte that it is sent.
//
// A calibrated one can be the target of a whole link: the metadata, and with them the
// transactions of the lanes, are the backend's. It acknowledges what they write to data,
// and for each statement uses as much CPU as a real server does.
type Null struct {
	*End

	// server is nil if it runs in another process.
	server *nullServer
}

// StartNull starts one in this process.
func StartNull(ctx context.Context, seed int64, calibrated bool) (*Null, error) {
	backend, err := StartEmbedded(ctx, seed, 0)
	if err != nil {
		return nil, err
	}
	s, err := newNullServer(ctx, backend, calibrated)
	if err != nil {
		backend.Close()
		return nil, err
	}
	n, err := openNull(ctx, s.uri(), calibrated)
	if err != nil {
		s.close()
		return nil, err
	}
	n.server = s
	return n, nil
}

// StartNullAt starts one: in a process of its own by serve, or in this one where that
// is nil.
func StartNullAt(ctx context.Context, serve Serve, seed int64, calibrated bool) (*Null, error) {
	if serve == nil {
		return StartNull(ctx, seed, calibrated)
	}
	e, _, err := startServed(ctx, serve, What{Kind: Acknowledging, Seed: seed, Calibrated: calibrated})
	if err != nil {
		return nil, err
	}
	e.Is = nullEnd(calibrated)
	return &Null{End: e}, nil
}

// nullEnd is the End of a Null, whatever its backend is.
func nullEnd(calibrated bool) result.End {
	if calibrated {
		return result.End{Kind: result.EndCalibrated}
	}
	return result.End{Kind: result.EndNull}
}

func openNull(ctx context.Context, uri string, calibrated bool) (*Null, error) {
	e, err := Open(ctx, uri)
	if err != nil {
		return nil, err
	}
	e.Is = nullEnd(calibrated)
	return &Null{End: e}, nil
}

// Close disconnects, and ends the server.
func (n *Null) Close() {
	n.End.Close()
	if n.server != nil {
		n.server.close()
	}
}

// Arm starts or stops discarding writes, and resets the counts.
func (n *Null) Arm(ctx context.Context, on bool) error {
	if _, err := n.run(ctx, "admin", bson.D{{Key: nullCommand, Value: 1}, {Key: "arm", Value: on}}); err != nil {
		return fmt.Errorf("arm the null server: %w", err)
	}
	return nil
}

// Cost is what the writes since Arm cost a real server, on the machine of the
// calibration.
func (n *Null) Cost(ctx context.Context) (time.Duration, error) {
	reply, err := n.run(ctx, "admin", bson.D{{Key: nullCommand, Value: 1}})
	if err != nil {
		return 0, fmt.Errorf("ask the null server: %w", err)
	}
	cost, _ := reply.Lookup("nanoseconds").AsInt64OK()
	return time.Duration(cost), nil
}

// Commands is the number of commands acknowledged since Arm, Statements the number
// of document writes in them, without those to MetaDB.
func (n *Null) Commands(ctx context.Context) (commands, statements int64, err error) {
	reply, err := n.run(ctx, "admin", bson.D{{Key: nullCommand, Value: 1}})
	if err != nil {
		return 0, 0, fmt.Errorf("ask the null server: %w", err)
	}
	commands, _ = reply.Lookup("commands").AsInt64OK()
	statements, _ = reply.Lookup("statements").AsInt64OK()
	return commands, statements, nil
}

// nullServer listens.
type nullServer struct {
	listener net.Listener
	backend  *End
	// address is its own, member that of the backend.
	address, member string

	calibrated           bool
	armed                atomic.Bool
	commands, statements atomic.Int64
	nanoseconds          atomic.Int64
	lanes                lanes

	ctx    context.Context //nolint:containedctx // the lifetime of all connections, ended by close
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
}

// errNullClosed is the cause when connections of a null server end.
var errNullClosed = errors.New("the null server was closed")

func newNullServer(ctx context.Context, backend *End, calibrated bool) (*nullServer, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a null server: %w", err)
	}
	s := &nullServer{listener: l, backend: backend, calibrated: calibrated, address: l.Addr().String(), member: backend.sim.Member(0).Host()}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.done.Go(s.acceptLoop)
	return s, nil
}

// uri is that of the backend, with the server's own address.
func (s *nullServer) uri() string { return strings.ReplaceAll(s.backend.URI, s.member, s.address) }

// acceptLoop serves clients until the listener is closed.
func (s *nullServer) acceptLoop() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.done.Go(func() {
			c := newNullConn(s, conn)
			defer c.close()
			stop := context.AfterFunc(s.ctx, func() { _ = conn.Close() })
			defer stop()
			// How a connection ended concerns only the client.
			_ = c.serve(s.ctx)
		})
	}
}

// close ends all connections, and the backend.
func (s *nullServer) close() {
	s.cancel(errNullClosed)
	_ = s.listener.Close()
	s.done.Wait()
	s.backend.Close()
}
