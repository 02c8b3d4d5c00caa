package web

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// near is a loopback address.
var near = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9216}

// snapshot stands for that of a link.
type snapshot struct {
	Link string   `json:"link"`
	Lag  *float64 `json:"lag"`
}

// asked records requests.
type asked struct {
	list []Request
	err  error
}

func (a *asked) Ask(_ context.Context, r Request) (string, error) {
	if a.err != nil {
		return "", a.err
	}
	a.list = append(a.list, r)
	return "id-1", nil
}

func (a *asked) List(context.Context) (any, error) { return []string{"one"}, a.err }

// config is a server with everything.
func config(requests Requests) Config {
	return Config{
		Address: near, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Version: "v",
		Link: Link{
			Status:   func() any { return snapshot{Link: "l"} },
			Health:   func() (bool, string) { return true, "good\n" },
			History:  func(span time.Duration) (any, error) { return span.String(), nil },
			Requests: requests,
		},
		Links: func(context.Context) (any, error) { return []string{"l"}, nil },
		Types: Types{Status: snapshot{}, History: "", Links: []string{}, Requests: []string{}},
	}
}

func server(t *testing.T, cfg Config) *Server {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// call is a request to a handler.
type call struct {
	method, target, host, from, body string
	header                           map[string]string
}

func (c call) to(t *testing.T, h http.Handler) *httptest.ResponseRecorder {
	t.Helper()
	if c.method == "" {
		c.method = http.MethodGet
	}
	r := httptest.NewRequestWithContext(t.Context(), c.method, c.target, strings.NewReader(c.body))
	r.Host, r.RemoteAddr = "127.0.0.1:9216", "127.0.0.1:50000"
	if c.host != "" {
		r.Host = c.host
	}
	if c.from != "" {
		r.RemoteAddr = c.from
	}
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var errAway = errors.New("no server of the target can be found")
