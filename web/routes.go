package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// maxAsking is how many requests may wait for the target at a time, askTimeout how long.
	maxAsking  = 8
	askTimeout = 10 * time.Second
	// maxScrapes is how many scrapes of the metrics may be under way.
	maxScrapes = 8
)

// route is an address that the server answers.
type route struct {
	method, path string
	// summary is for the list of addresses and the OpenAPI document.
	summary string
	answers answers
	serve   http.HandlerFunc
	// absent hides it: the process has nothing for it.
	absent bool
}

// table returns the routes of a link and, at the top, of the process.
func (s *Server) table() []route {
	l := &s.cfg.Link
	list := s.linkTable(func(*http.Request) (string, Link, error) { return "", *l, nil }, *l)
	return append(list,
		route{http.MethodGet, "/links", "every link in the target's metadata, worst first", answers{"Links", http.StatusServiceUnavailable}, s.serveLinks, s.cfg.Links == nil},
		route{http.MethodGet, "/readyz", "200 while the process can do its work, 503 and why while it cannot", answers{"", http.StatusServiceUnavailable}, s.serveReady, false},
		route{http.MethodGet, "/metrics", "for Prometheus", answers{"", http.StatusServiceUnavailable}, s.metricsHandler().ServeHTTP, false},
		route{http.MethodGet, "/openapi.json", "this interface, as an OpenAPI 3.1 document", answers{"OpenAPI", 0}, s.serveOpenAPI, false},
	)
}

// of finds the link that a request is for.
type of func(*http.Request) (name string, l Link, err error)

// linkTable returns the routes of a link, without those that has does not support.
func (s *Server) linkTable(of of, has Link) []route {
	at := func(f func(w http.ResponseWriter, r *http.Request, name string, l *Link)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			name, l, err := of(r)
			if err != nil {
				s.noLink(w, err)
				return
			}
			f(w, r, name, &l)
		}
	}
	return []route{
		{http.MethodGet, "/status", "what it is doing, as JSON; /status?pretty for people", answers{"Status", 0}, at(s.serveStatus), has.Status == nil},
		{http.MethodGet, "/events", "a status each second, and what happens (server-sent events)", answers{"", http.StatusServiceUnavailable}, s.serveEvents(of), has.Status == nil},
		{http.MethodGet, "/history", "the last hours: ?range=1h, 6h or 24h", answers{"History", http.StatusBadRequest}, at(s.serveHistory), has.History == nil},
		{http.MethodGet, "/requests", "what operators have asked for, and what became of it", answers{"Requests", http.StatusServiceUnavailable}, at(s.serveRequests), has.Requests == nil},
		{http.MethodPost, "/requests", "pause, resume, throttle, …", answers{"Asked", http.StatusBadRequest}, at(s.takeRequest), has.Requests == nil},
		{http.MethodGet, "/healthz", "200 while it does what it should, 503 and why while it does not", answers{"", http.StatusServiceUnavailable}, at(s.serveHealth), has.Health == nil},
	}
}

// routes returns the handler of all addresses.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range s.table() {
		if !r.absent {
			mux.HandleFunc(r.method+" "+r.path, r.serve)
		}
	}
	page := s.cfg.Page
	if page == nil {
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, s.index()) })
	} else {
		mux.Handle("GET /{$}", page)
		mux.Handle("GET /fleet", page)
		mux.Handle("GET /page/", page)
	}
	if s.cfg.Find != nil {
		s.linkRoutes(mux, page)
	}
	if s.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	}
	return mux
}

// linkRoutes serves the links of a process that has many.
func (s *Server) linkRoutes(mux *http.ServeMux, page http.Handler) {
	find := func(r *http.Request) (string, Link, error) {
		name := r.PathValue("link")
		l, err := s.cfg.Find(name)
		return name, l, err
	}
	// The handlers say what a link does not have.
	for _, r := range s.linkTable(find, Link{}) {
		mux.HandleFunc(r.method+" /link/{link}"+r.path, r.serve)
		if r.path == "/status" {
			mux.HandleFunc(r.method+" /status/{link}", r.serve)
		}
	}
	if page == nil {
		return
	}
	at := func(w http.ResponseWriter, r *http.Request) {
		name, _, err := find(r)
		if err != nil {
			s.noLink(w, err)
			return
		}
		http.StripPrefix("/link/"+name, page).ServeHTTP(w, r)
	}
	mux.HandleFunc("GET /link/{link}/{$}", at)
	mux.HandleFunc("GET /link/{link}/page/", at)
}

// index lists the addresses.
func (s *Server) index() string {
	var out strings.Builder
	out.WriteString(s.cfg.Title + "\n\n")
	line := func(address, summary string) { _, _ = fmt.Fprintf(&out, "%-16s %s\n", address, summary) }
	for _, r := range s.table() {
		switch {
		case r.absent:
		case r.method == http.MethodGet:
			line(r.path, r.summary)
		default:
			line(r.method+" "+r.path, r.summary)
		}
	}
	if s.cfg.Find != nil {
		line("/link/NAME/…", "the same of one link: status, events, history, requests, healthz")
	}
	if s.cfg.Pprof {
		line("/debug/pprof/", "profiles of the process")
	}
	return out.String()
}

func (s *Server) serveStatus(w http.ResponseWriter, r *http.Request, _ string, l *Link) {
	if l.Status == nil {
		s.nothing(w)
		return
	}
	s.answer(w, r, l.Status())
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request, _ string, l *Link) {
	if l.Health == nil {
		s.nothing(w)
		return
	}
	code := http.StatusOK
	ok, said := l.Health()
	if !ok {
		code = http.StatusServiceUnavailable
	}
	text(w, code, said)
}

func (s *Server) serveReady(w http.ResponseWriter, _ *http.Request) {
	if err := s.cfg.Ready(); err != nil {
		text(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	text(w, http.StatusOK, "ready\n")
}

// spans are the values of /history?range=.
var spans = map[string]time.Duration{"": time.Hour, "1h": time.Hour, "6h": 6 * time.Hour, "24h": 24 * time.Hour}

func (s *Server) serveHistory(w http.ResponseWriter, r *http.Request, _ string, l *Link) {
	if l.History == nil {
		s.nothing(w)
		return
	}
	span, ok := spans[r.URL.Query().Get("range")]
	if !ok {
		s.refuse(w, &refusal{http.StatusBadRequest, "range", "range is 1h, 6h or 24h"})
		return
	}
	v, err := l.History(span)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, v)
}

func (s *Server) serveLinks(w http.ResponseWriter, r *http.Request) {
	v, err := s.links.get(r.Context(), s.cfg.Links)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, v)
}

// enter takes one of the places for requests that read the target. It reports whether there is one, and
// returns a context that ends in time.
func (s *Server) enter(r *http.Request) (ctx context.Context, leave func(), ok bool) {
	select {
	case s.asking <- struct{}{}:
	default:
		return nil, nil, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	return ctx, func() { cancel(); <-s.asking }, true
}

var busy = &refusal{http.StatusServiceUnavailable, "busy", "too many requests wait for the target: try again"}

func (s *Server) serveRequests(w http.ResponseWriter, r *http.Request, _ string, l *Link) {
	if l.Requests == nil {
		s.nothing(w)
		return
	}
	ctx, leave, ok := s.enter(r)
	if !ok {
		s.refuse(w, busy)
		return
	}
	defer leave()
	v, err := l.Requests.List(ctx)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, r, v)
}

func (s *Server) takeRequest(w http.ResponseWriter, r *http.Request, _ string, l *Link) {
	if l.Requests == nil {
		s.nothing(w)
		return
	}
	by, refused := s.guard.change(r)
	if refused != nil {
		s.refuse(w, refused)
		return
	}
	asked, refused := decode(http.MaxBytesReader(w, r.Body, bodyBytes))
	if refused != nil {
		s.refuse(w, refused)
		return
	}
	asked.By = by
	ctx, leave, ok := s.enter(r)
	if !ok {
		s.refuse(w, busy)
		return
	}
	defer leave()
	id, err := l.Requests.Ask(ctx, asked) //nolint:contextcheck // it is the request's, with an end
	switch {
	case errors.Is(err, ErrRefused):
		s.refuse(w, &refusal{http.StatusBadRequest, "request", err.Error()})
	case err != nil:
		s.fail(w, err)
	default:
		s.cfg.Log.LogAttrs(r.Context(), slog.LevelInfo, "a request was taken over HTTP",
			slog.String(keyID, id), slog.String(keyKind, asked.Kind), slog.String(keyBy, by))
		body, _ := json.Marshal(struct {
			ID string `json:"id"`
		}{id})
		s.send(w, r, http.StatusAccepted, body)
	}
}

const (
	keyID   = "id"
	keyKind = "kind"
	keyBy   = "by"
)

// metricsHandler serves the metrics.
func (s *Server) metricsHandler() http.Handler {
	opts := promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}
	if s.cfg.MetricsPartly {
		opts.ErrorHandling = promhttp.ContinueOnError
		opts.ErrorLog = slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelError)
	}
	return promhttp.HandlerFor(s.cfg.Metrics, opts)
}
