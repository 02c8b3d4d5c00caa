package web

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestHosts: DNS rebinding. On a loopback address only loopback names, and those that were named,
// are answered; on others any name is, unless some were named.
func TestHosts(t *testing.T) {
	t.Parallel()
	listed := []string{"Mirror.example"}
	far := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9216}
	for _, tt := range []struct {
		address net.Addr
		hosts   []string
		host    string
		ok      bool
	}{
		{near, nil, "localhost", true},
		{near, nil, "LOCALHOST:9216", true},
		{near, nil, "127.0.0.1:9216", true},
		{near, nil, "127.9.9.9", true},
		{near, nil, "[::1]:9216", true},
		{near, nil, "[::ffff:127.0.0.1]:9216", true},
		{near, nil, "evil.example", false},
		{near, nil, "evil.example:9216", false},
		{near, nil, "127.0.0.1.evil.example", false},
		{near, nil, "localhost.evil.example:9216", false},
		{near, nil, "localhost@evil.example", false},
		{near, nil, "evil.example#localhost", false},
		{near, nil, "0.0.0.0:9216", false},
		{near, nil, "10.0.0.1:9216", false},
		{near, nil, "[::]:9216", false},
		{near, nil, "0x7f000001", false},
		{near, nil, "2130706433", false},
		{near, nil, "127.1", false},
		{near, nil, "", false},
		{near, nil, "mirror.example", false},
		{near, listed, "mirror.example:443", true},
		{near, listed, "MIRROR.example", true},
		{near, listed, "a.mirror.example", false},
		{near, listed, "localhost", true},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 1}, nil, "evil.example", false},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 1}, nil, "evil.example", false},
		{far, nil, "evil.example", true},
		{far, nil, "10.0.0.1", true},
		{far, listed, "mirror.example", true},
		{far, listed, "10.0.0.1:9216", true},
		{far, listed, "[fe80::1]:9216", true},
		{far, listed, "evil.example", false},
		{&net.TCPAddr{IP: net.IPv4zero, Port: 1}, nil, "evil.example", true},
	} {
		cfg := config(nil)
		cfg.Address, cfg.Hosts = tt.address, tt.hosts
		g := newGuard(&cfg)
		for _, path := range []string{"/status", "/", "/events", "/metrics", "/healthz"} {
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))(t)
			r.Host = tt.host
			if refused := g.check(r); (refused == nil) != tt.ok || refused != nil && refused.code != http.StatusMisdirectedRequest {
				t.Errorf("%s on %s, hosts %q: %+v", tt.host, tt.address, tt.hosts, refused)
			}
		}
	}
}

// TestPaths: a path has one spelling.
func TestPaths(t *testing.T) {
	t.Parallel()
	cfg := config(&asked{})
	cfg.Page = http.NotFoundHandler()
	cfg.Pprof = true
	cfg.Find = func(string) (Link, error) { return cfg.Link, nil }
	s := server(t, cfg)
	for target, code := range map[string]int{
		"/status": 200, "/link/a.b-c_d/status": 200, "/status/a": 200,
		"//status": 404, "/status/": 404, "/./status": 404, "/x/../status": 404, "/status/..": 404,
		"/..%2fstatus": 404, "/%2e%2e/status": 404, "/status%2f": 404, "/%73tatus": 404, "/status%00": 404, "/status%20": 404, "/status%0d%0aX:y": 404,
		"/link/a%2fb/status": 404, "/link/../status": 404, "/link/%2e%2e/status": 404, "/link/a/%2e%2e/%2e%2e/status": 404, "/link//status": 404,
		`/..\status`: 404, "/page/..%5c..%5cetc": 404, "/page/../../etc/passwd": 404, "/page/%2e%2e%2f": 404, "/debug/pprof/..%2fheap": 404,
		"//evil.example/..": 404, "/STATUS": 404, "/status;a=b": 404, "/st\u00e4tus": 404, "/requests/": 404, "/healthz/x": 404,
	} {
		if got := (call{target: target}).to(t, s); got.Code != code || got.Header().Get("Location") != "" {
			t.Errorf("%s: %d %s %s", target, got.Code, got.Header().Get("Location"), got.Body)
		}
	}
}

const pauses = `{"kind": "pause"}`

// TestChanges: which clients may make a change, and how a browser is kept from making one for
// another site. A refused request is never recorded.
func TestChanges(t *testing.T) {
	t.Parallel()
	const json = "application/json"
	type header = map[string]string
	far := &net.TCPAddr{IP: net.IPv4zero, Port: 9216}
	tokens := must.Get(NewTokens("", "0123456789abcdef"))(t)
	for name, tt := range map[string]struct {
		address net.Addr
		tokens  *Tokens
		call    call
		code    int
		by      string
	}{
		"on this machine":               {near, nil, call{header: header{"Content-Type": json}}, 202, "127.0.0.1"},
		"on this machine, by IPv6":      {near, nil, call{host: "[::1]:9216", from: "[::1]:50000", header: header{"Content-Type": json}}, 202, "::1"},
		"with parameters":               {near, nil, call{header: header{"Content-Type": "application/json; charset=utf-8"}}, 202, "127.0.0.1"},
		"the page itself":               {near, nil, call{header: header{"Content-Type": json, "Origin": "http://127.0.0.1:9216", "Sec-Fetch-Site": "same-origin"}}, 202, "127.0.0.1"},
		"the page, old browser":         {near, nil, call{header: header{"Content-Type": json, "Origin": "http://127.0.0.1:9216"}}, 202, "127.0.0.1"},
		"a rebound name":                {near, nil, call{host: "evil.example", header: header{"Content-Type": json}}, 421, ""},
		"a form":                        {near, nil, call{header: header{"Content-Type": "application/x-www-form-urlencoded"}}, 415, ""},
		"a form with text":              {near, nil, call{header: header{"Content-Type": "text/plain"}}, 415, ""},
		"a form with JSON in text":      {near, nil, call{header: header{"Content-Type": "text/plain; application/json"}}, 415, ""},
		"no type":                       {near, nil, call{}, 415, ""},
		"another site":                  {near, nil, call{header: header{"Content-Type": json, "Sec-Fetch-Site": "cross-site"}}, 403, ""},
		"another port":                  {near, nil, call{header: header{"Content-Type": json, "Sec-Fetch-Site": "same-site"}}, 403, ""},
		"another origin":                {near, nil, call{header: header{"Content-Type": json, "Origin": "http://evil.example"}}, 403, ""},
		"another origin, by its port":   {near, nil, call{header: header{"Content-Type": json, "Origin": "http://127.0.0.1:9217"}}, 403, ""},
		"no origin":                     {near, nil, call{header: header{"Content-Type": json, "Origin": "null"}}, 403, ""},
		"through a proxy":               {near, nil, call{header: header{"Content-Type": json, "X-Forwarded-For": "10.0.0.9"}}, 403, ""},
		"through another proxy":         {near, nil, call{header: header{"Content-Type": json, "Forwarded": "for=10.0.0.9"}}, 403, ""},
		"from elsewhere":                {near, nil, call{from: "10.0.0.9:1", header: header{"Content-Type": json}}, 403, ""},
		"in the network":                {far, nil, call{from: "10.0.0.9:1", header: header{"Content-Type": json}}, 403, ""},
		"in the network, from here":     {far, nil, call{header: header{"Content-Type": json}}, 403, ""},
		"no token":                      {near, tokens, call{header: header{"Content-Type": json}}, 401, ""},
		"a token":                       {far, tokens, call{from: "10.0.0.9:1", header: header{"Content-Type": json, "Authorization": "Bearer 0123456789abcdef"}}, 202, "token"},
		"a token, through a proxy":      {near, tokens, call{header: header{"Content-Type": json, "Via": "1.1 p", "Authorization": "bearer 0123456789abcdef"}}, 202, "token"},
		"a prefix of the token":         {far, tokens, call{header: header{"Content-Type": json, "Authorization": "Bearer 0123456789abcde"}}, 401, ""},
		"more than the token":           {far, tokens, call{header: header{"Content-Type": json, "Authorization": "Bearer 0123456789abcdef0"}}, 401, ""},
		"an empty token":                {far, tokens, call{header: header{"Content-Type": json, "Authorization": "Bearer "}}, 401, ""},
		"a password":                    {far, tokens, call{header: header{"Content-Type": json, "Authorization": "Basic 0123456789abcdef"}}, 401, ""},
		"a token in the address":        {far, tokens, call{target: "/requests?token=0123456789abcdef", header: header{"Content-Type": json}}, 401, ""},
		"a token, another site":         {far, tokens, call{header: header{"Content-Type": json, "Authorization": "Bearer 0123456789abcdef", "Sec-Fetch-Site": "cross-site"}}, 403, ""},
		"a token, another type of body": {far, tokens, call{header: header{"Content-Type": "text/plain", "Authorization": "Bearer 0123456789abcdef"}}, 415, ""},
	} {
		requests := &asked{}
		cfg := config(requests)
		cfg.Address, cfg.Tokens = tt.address, tt.tokens
		tt.call.method, tt.call.body = http.MethodPost, pauses
		if tt.call.target == "" {
			tt.call.target = "/requests"
		}
		w := tt.call.to(t, server(t, cfg))
		if w.Code != tt.code || (w.Code == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tt.code)
		}
		switch {
		case tt.code != http.StatusAccepted && len(requests.list) > 0:
			t.Errorf("%s: asked for %+v", name, requests.list)
		case tt.code == http.StatusAccepted && (len(requests.list) != 1 || requests.list[0].By != tt.by || w.Body.String() != `{"id":"id-1"}`+"\n"):
			t.Errorf("%s: %+v, %s", name, requests.list, w.Body)
		}
		for _, name := range []string{"Access-Control-Allow-Origin", "Set-Cookie"} {
			if w.Header().Get(name) != "" {
				t.Errorf("%s is %s", name, w.Header().Get(name))
			}
		}
	}
}

// TestPprof: profiles are for a loopback address, and are asked for.
func TestPprof(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Pprof = true
	s := server(t, cfg)
	if w := (call{target: "/debug/pprof/"}).to(t, s); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "goroutine") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := (call{target: "/debug/pprof/", host: "evil.example"}).to(t, s); w.Code != http.StatusMisdirectedRequest {
		t.Errorf("a rebound name: %d", w.Code)
	}
	cfg.Address = &net.TCPAddr{IP: net.IPv4zero, Port: 1}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("%v", err)
	}
}
