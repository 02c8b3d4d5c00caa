package dispatch

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
)

// The keys of log attributes.
const (
	keySession = "session"
	keyAt      = "at"
	keyTerm    = "term"
	keyError   = "error"
)

// Server answers commands. It is safe for concurrent use.
type Server struct {
	Config   Config
	Version  [2]int
	FCV      [2]int
	Commands map[string]*Spec
	Cursors  *cursorTable
	Sessions sessionTable
	Fails    failPoints
	Builds   Builds
	Stats    serverStats
	pressure atomic.Pointer[Pressure]
	Random   *chooser

	Conns atomic.Int64
	clock clusterClock

	// closed ends waits when the server is closed.
	closed context.Context
	close  context.CancelCauseFunc

	mu sync.Mutex
	// primary ends a primary's waits when the member steps down.
	primary context.Context
	depose  context.CancelCauseFunc
}

// New makes a Server. It starts nothing; [Server.Hooks] has to be among the
// hooks of the node.
func New(cfg Config, more ...[]Spec) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{Config: cfg, Commands: map[string]*Spec{}}
	s.Version, _ = parseVersion(cfg.Dialect.Version) // validate has checked it
	s.FCV = s.Version
	if cfg.Dialect.FCV != "" {
		fcv, err := parseVersion(cfg.Dialect.FCV)
		if err != nil {
			return nil, err
		}
		s.FCV = fcv
	}
	s.Sessions.now, s.Sessions.byKey = cfg.Now, map[sessionKey]*session{}
	s.Stats.Started = cfg.Now()
	s.Random = newChooser(cfg.Seed)
	s.Cursors = newCursorTable(cfg.Now)
	s.closed, s.close = context.WithCancelCause(context.Background()) //nolint:forbidigo // the life of the server, not of a caller
	s.primary, s.depose = context.WithCancelCause(s.closed)
	for _, all := range append([][]Spec{txnSpecs(), sessionSpecs(), failPointSpecs()}, more...) {
		for i := range all {
			if err := s.register(&all[i]); err != nil {
				return nil, err
			}
		}
	}
	if v := cfg.Dialect.Version; v == "4.4.0" || v == "4.4.1" {
		delete(s.Commands, "hello") // new in 4.4.2
	}
	return s, nil
}

func (s *Server) register(c *Spec) error {
	if c.StructName == "" {
		c.StructName = c.Name
	}
	if c.Fields != nil {
		c.known = make(map[string]int, len(c.Fields)+1)
		for i, f := range c.Fields {
			c.known[f] = i
		}
		if len(c.Fields) > 64 {
			return fmt.Errorf("command: %s has more than 64 arguments", c.Name)
		}
	}
	for _, name := range append([]string{c.Name}, c.Aliases...) {
		if s.Commands[name] != nil {
			return fmt.Errorf("command: %s is listed twice", name)
		}
		s.Commands[name] = c
	}
	return nil
}

func parseVersion(v string) ([2]int, error) {
	major, rest, _ := strings.Cut(v, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if errA != nil || errB != nil {
		return [2]int{}, fmt.Errorf("command: read server version %q: want digits such as 5.0.7", v)
	}
	return [2]int{a, b}, nil
}

// AtLeast reports whether the dialect's version is this one or a later one.
func (s *Server) AtLeast(major, minor int) bool {
	return s.Version[0] > major || s.Version[0] == major && s.Version[1] >= minor
}

// Close ends waits, and drops cursors and open transactions. Later commands are
// answered with ShutdownInProgress.
func (s *Server) Close() {
	s.close(errShutdown)
	// The store may outlive the server: units left open would block the next one.
	s.releaseTransactions()
	s.Cursors.close()
}

// NewConn returns the state of a new connection from a client at this address.
func (s *Server) NewConn(remote string) *Conn {
	return &Conn{ID: s.Conns.Add(1), Remote: remote, era: s.Config.Moods.Era()}
}

// CloseConn records that a connection has ended. Sessions, transactions and
// cursors outlive it, as they do with the server.
func (s *Server) CloseConn(*Conn) { s.Stats.Closed.Add(1) }

// Handler returns the answering side of one connection, for [wire.Serve].
func (s *Server) Handler(c *Conn) wire.Handler { return &handler{srv: s, conn: c} }

type handler struct {
	srv  *Server
	conn *Conn
	// buf is the buffer of the last reply, which has been sent before the next
	// one is made.
	buf []byte
	// small counts the replies since the last one that needed a large buffer.
	small int
}

// Handle answers one message: see wire.Handler.
func (h *handler) Handle(ctx context.Context, m *wire.Message) wire.Response {
	in := Input{Body: m.Body, Exhaust: m.Flags.Has(wire.ExhaustAllowed), Legacy: m.Legacy, buf: h.buf}
	for _, s := range m.Sequences {
		in.Sequences = append(in.Sequences, Sequence{s.Name, s.Docs})
	}
	out := h.srv.Dispatch(ctx, h.conn, in)
	h.keep(out.Body)
	return wire.Response{Body: out.Body, More: out.More, Next: out.Next, Close: out.hangUp}
}

// keep keeps a reply's memory for the next one: a large one until it has not been needed for
// Patience replies. A client's large replies come with small ones between them.
func (h *handler) keep(body []byte) {
	h.buf = body
	if cap(body) <= SmallReply || cap(body)/4 <= len(body) {
		h.small = 0
	} else if h.small++; h.small == Patience {
		h.buf, h.small = nil, 0
	}
}

// Patience is the number of small replies in a row after which a large buffer is dropped.
const Patience = 16

// SmallReply is the memory that a connection keeps in any case, in bytes.
const SmallReply = 16 << 10

// Call carries out a command of another member in this process, or of a test:
// the arrays of the body stand for document sequences. The reply is the error's
// document if the command fails.
func (s *Server) Call(ctx context.Context, cmd bson.Raw) bson.Raw {
	return s.CallOn(ctx, &Conn{Internal: true}, cmd)
}

// CallOn is Call on a given connection. A fail point that closes the connection
// makes the reply nil.
func (s *Server) CallOn(ctx context.Context, c *Conn, cmd bson.Raw) bson.Raw {
	out := s.Dispatch(ctx, c, Input{Body: cmd})
	if out.hangUp {
		return nil
	}
	return out.Body
}

// SteppedUp creates the collections of a primary and takes over the former
// primary's prepared transactions: see repl.Hooks.
func (s *Server) SteppedUp(term int64, prepared []opwrite.Prepared) {
	s.mu.Lock()
	s.primary, s.depose = context.WithCancelCause(s.closed)
	s.mu.Unlock()
	s.ForgetSessions()
	err := s.Config.Path.Write(func(b *opwrite.Batch) error { return b.StepUp() })
	if err != nil && s.Config.Log != nil {
		s.Config.Log.Error("a primary could not begin", keyTerm, term, keyError, err)
	}
	for _, p := range prepared {
		s.adopt(p)
	}
}

// SteppedDown aborts the open transactions and wakes the writers that wait: see
// repl.Hooks.
func (s *Server) SteppedDown() {
	s.mu.Lock()
	depose := s.depose
	s.mu.Unlock()
	depose(errSteppedDown)
	s.releaseTransactions()
}

// RolledBack invalidates sessions and cursors: see repl.Hooks.
func (s *Server) RolledBack() {
	s.ForgetSessions()
	s.Cursors.rolledBack()
}

// asPrimary returns a context that also ends when the member steps down.
func (s *Server) asPrimary() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.primary
}

// ClusterTime returns the newest cluster time that this member has seen: new
// optimes must come after it (opwrite.Config.ClusterTime).
func (s *Server) ClusterTime() bson.Timestamp { return s.clock.advance(bson.Timestamp{}) }

// Tick advances the cluster time by one, for a zero timestamp.
func (s *Server) Tick() bson.Timestamp {
	for {
		have := s.clock.packed.Load()
		next := max(have+1, uint64(s.Config.Now().Truncate(time.Second).Unix())<<32|1)
		if s.clock.packed.CompareAndSwap(have, next) {
			return bson.Timestamp{T: uint32(next >> 32), I: uint32(next)}
		}
	}
}
