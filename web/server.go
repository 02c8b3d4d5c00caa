package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// readTimeout bounds the time in which a request has to arrive, its body included;
	// writeTimeout the time in which its answer is taken; idleTimeout the time between two
	// requests of a connection.
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = time.Minute
	// lastTimeout bounds requests in flight at shutdown.
	lastTimeout = 3 * time.Second
	// headerBytes and bodyBytes bound a request.
	headerBytes = 16 << 10
	bodyBytes   = 64 << 10
	// maxConnections and maxStreams are how many connections the server has, and how many of
	// them may be streams of /events.
	maxConnections = 512
	maxStreams     = 256
)

// Link has the sources of one link's data, and the receiver of its requests. The paths of a nil field are not found.
type Link struct {
	// Status returns the body of /status, to be marshalled. It must be cheap: it is called once per second
	// while there are streams.
	Status func() any
	// Health returns whether the link is healthy, and the text that says so.
	Health func() (ok bool, text string)
	// History returns the body of /history, of the last span.
	History func(span time.Duration) (any, error)
	// Events returns the events after the one of that id, in the order of the ids, as far as it is
	// kept, and a channel that is closed once there is more.
	Events func(after uint64) (events []Event, more <-chan struct{})
	// Requests receives the requests of operators.
	Requests Requests
}

// Event is something that happened.
type Event struct {
	// ID is the event's place in the stream: it rises from each event to the next, also over
	// restarts of the process.
	ID uint64
	// Body is marshalled as JSON.
	Body any
}

// Requests are the operators' requests to a link. They are safe for concurrent use.
type Requests interface {
	// Ask records a request, durably, and returns its id. An error that wraps [ErrRefused] says
	// why the request is not valid; any other means that it could not be recorded.
	Ask(ctx context.Context, r Request) (id string, err error)
	// List returns the list of requests, to be marshalled.
	List(ctx context.Context) (any, error)
}

// Request is a request of an operator.
type Request struct {
	Kind string
	// By is the name of the token, or the address that the request came from.
	By  string
	Why string
	// Args are a JSON object, nil if there is none.
	Args json.RawMessage
}

var (
	// ErrRefused is wrapped by errors about what a request asks for: it is answered with 400.
	ErrRefused = errors.New("refused")
	// ErrNoLink is wrapped by the error of [Config.Find] for a link that the process does not
	// have: it is answered with 404, any other error with 503.
	ErrNoLink = errors.New("no such link")
)

// Config configures a Server.
type Config struct {
	// Title begins the list of addresses, which / is where there is no Page. Default: replicator.
	Title string
	// Address is the listener's: on a loopback address less is required, and less answered.
	Address net.Addr
	// Hosts are further names (without ports) under which the server is reached, such as that of a
	// proxy in front of a loopback address.
	Hosts []string
	// Tokens are those that allow changes. Nil: none, and changes are taken on a loopback address only.
	Tokens *Tokens
	// TLS encrypts the connections, if not nil.
	TLS *tls.Config

	// Link is served at the top level.
	Link Link
	// Find returns the links that are served under /link/NAME/. Nil: there are none.
	Find func(name string) (Link, error)
	// Links returns the body of /links. Nil: not found.
	Links func(ctx context.Context) (any, error)
	// Ready returns why the process cannot do its work, nil if it can. Nil: it always can.
	Ready func() error
	// Metrics are those of /metrics. Required. If MetricsPartly, what can be gathered is
	// served although something else cannot.
	Metrics       prometheus.Gatherer
	MetricsPartly bool
	// Registry gets the metrics of the server. May be nil.
	Registry prometheus.Registerer
	// Page serves the page: /, /fleet and /page/. May be nil.
	Page http.Handler
	// Types describe the answers in the OpenAPI document.
	Types Types
	// Version is the program's, in the OpenAPI document.
	Version string
	// Pprof serves the profiles of net/http/pprof, on a loopback address.
	Pprof bool
	// Log is required.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Title == "" {
		c.Title = "replicator"
	}
	if c.Ready == nil {
		c.Ready = func() error { return nil }
	}
}

// Server answers requests. It is safe for concurrent use.
type Server struct {
	cfg     Config
	guard   guard
	mux     *http.ServeMux
	streams *streams
	links   *memo
	// asking has a place for each request that asks the target.
	asking  chan struct{}
	metrics metrics
}

// errEnded is why a request in flight is cut off.
var errEnded = errors.New("the process ends")

// lifeKey is the key of the server's own context in those of requests. It is over when the requests in
// flight are cut off at shutdown: nothing outlives Serve.
type lifeKey struct{}

// lifeOf returns the context for what does not end with the request that began it.
func lifeOf(ctx context.Context) context.Context {
	if life, ok := ctx.Value(lifeKey{}).(context.Context); ok {
		return life
	}
	return context.WithoutCancel(ctx) // without a server, in a test of a handler
}

// New checks cfg and registers the metrics. It starts nothing.
func New(cfg Config) (*Server, error) {
	cfg.setDefaults()
	s := &Server{cfg: cfg, guard: newGuard(&cfg), streams: newStreams(), links: newMemo(), asking: make(chan struct{}, maxAsking)}
	if cfg.Pprof && !s.guard.loopback {
		return nil, errors.New("web: profiles are served on a loopback address only")
	}
	var err error
	if s.metrics, err = newMetrics(cfg.Registry, s.streams); err != nil {
		return nil, fmt.Errorf("web: register metrics: %w", err)
	}
	s.mux = s.routes()
	return s, nil
}

// Serve answers requests on ln until ctx is done; then it ends the streams, waits a short time
// for other requests in flight, cuts off the rest and returns nil. It closes ln. Once it has
// returned nothing calls the functions of the Config any more. It is called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // A connection is a request, so that the limit of connections is one of requests.
	crowd := newCrowd(maxConnections)
	var conns sync.WaitGroup // each with the handler of its request
	life, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerBytes, Protocols: &protocols, DisableGeneralOptionsHandler: true,
		BaseContext: func(net.Listener) context.Context { return context.WithValue(life, lifeKey{}, life) },
		ConnState: func(conn net.Conn, to http.ConnState) {
			crowd.change(conn, to)
			switch to {
			case http.StateNew:
				conns.Add(1) // by the accepting goroutine, which has ended before Wait
			case http.StateClosed, http.StateHijacked:
				conns.Done()
			case http.StateActive, http.StateIdle:
			}
		},
		// Any client that can connect can fill these.
		ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
	server.RegisterOnShutdown(s.streams.end)
	if s.cfg.TLS != nil {
		ln = tls.NewListener(ln, s.cfg.TLS)
	}
	var end sync.WaitGroup
	ended := make(chan struct{})
	end.Go(func() {
		select {
		case <-ended:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
			defer cancel()
			_ = server.Shutdown(last)
		}
	})
	err := server.Serve(ln)
	close(ended)
	end.Wait()
	// A client that reads too slowly, or waits for an answer of the target, is cut off.
	cut(errEnded)
	_ = server.Close()
	conns.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("web: serve on %s: %w", ln.Addr(), err)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if refused := s.guard.check(r); refused != nil {
		s.refuse(w, refused)
		return
	}
	s.mux.ServeHTTP(w, r)
}
