package web

import (
	"errors"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// refusal is why a request is not answered.
type refusal struct {
	code int
	// kind is the label of the metric.
	kind string
	text string
}

// guard decides which requests are answered.
type guard struct {
	// loopback is whether the server can be reached from its own machine only.
	loopback bool
	hosts    []string
	tokens   *Tokens
	cross    *http.CrossOriginProtection
}

func newGuard(cfg *Config) guard {
	g := guard{tokens: cfg.Tokens, cross: http.NewCrossOriginProtection(), loopback: IsLoopback(cfg.Address)}
	for _, h := range cfg.Hosts {
		g.hosts = append(g.hosts, strings.ToLower(h))
	}
	return g
}

// IsLoopback reports whether an address can be reached from its own machine only.
func IsLoopback(a net.Addr) bool {
	if a == nil {
		return false
	}
	at, err := netip.ParseAddrPort(a.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// check returns why a request is not answered, nil if it may be.
func (g *guard) check(r *http.Request) *refusal {
	switch {
	case !onePath(r):
		return &refusal{http.StatusNotFound, "path", "not found: write the path without escapes, as GET / lists it"}
	case !g.knows(hostOf(r.Host)):
		return &refusal{http.StatusMisdirectedRequest, "host", "this address answers to localhost and to the names of --listen-hosts only, not to " + short(r.Host)}
	}
	return nil
}

// onePath reports whether the path is spelled in the one way that is answered.
func onePath(r *http.Request) bool {
	p := r.URL.Path
	if r.URL.RawPath != "" || !strings.HasPrefix(p, "/") || strings.ContainsFunc(p, func(c rune) bool { return c <= ' ' || c == '\\' || c >= 0x7f }) {
		return false
	}
	clean := path.Clean(p)
	return p == clean || p == clean+"/"
}

// hostOf returns the name in a Host header.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// knows reports whether the server answers requests for a host. A client that uses an address knows
// the server. A name may be under an attacker's control: if the attacker makes it resolve to this address, a
// browser here sends requests to the server, and shows the attacker its answers.
func (g *guard) knows(host string) bool {
	at, err := netip.ParseAddr(host)
	isAddress := err == nil
	switch {
	case isAddress && at.Unmap().IsLoopback(), host == "localhost", slices.Contains(g.hosts, host):
		return true
	case g.loopback:
		return false
	}
	return isAddress || len(g.hosts) == 0
}

// proxied are the headers of requests that came through a proxy, which makes the whole network one
// address.
var proxied = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via"}

// change returns the user that asks for a change, or why it is refused.
func (g *guard) change(r *http.Request) (by string, refused *refusal) {
	if err := g.cross.Check(r); err != nil {
		return "", &refusal{http.StatusForbidden, "origin", "changes are not taken from the pages of other sites"}
	}
	if by, refused = g.who(r); refused != nil {
		return "", refused
	}
	// A page of another site can send any other type without asking first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return "", &refusal{http.StatusUnsupportedMediaType, "type", "send Content-Type: application/json"}
	}
	return by, nil
}

// who returns the user that asks for a change.
func (g *guard) who(r *http.Request) (by string, refused *refusal) {
	const ask = "; send Authorization: Bearer TOKEN"
	if g.tokens == nil {
		at, err := netip.ParseAddrPort(r.RemoteAddr)
		near := g.loopback && err == nil && at.Addr().Unmap().IsLoopback() && g.isLocal(r)
		if !near {
			return "", &refusal{http.StatusForbidden, "token", "changes need a bearer token, and this process was started without one: see --token-file"}
		}
		return at.Addr().Unmap().String(), nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", &refusal{http.StatusUnauthorized, "token", "changes need a bearer token" + ask}
	}
	by, err := g.tokens.find(strings.TrimSpace(token))
	switch {
	case errors.Is(err, errToken):
		return "", &refusal{http.StatusUnauthorized, "token", err.Error() + ask}
	case err != nil:
		return "", &refusal{http.StatusServiceUnavailable, "token", err.Error()}
	}
	return by, nil
}

// isLocal reports whether the headers of a request name this machine only, and no proxy.
func (g *guard) isLocal(r *http.Request) bool {
	host := hostOf(r.Host)
	at, err := netip.ParseAddr(host)
	return (host == "localhost" || err == nil && at.Unmap().IsLoopback()) &&
		!slices.ContainsFunc(proxied, func(name string) bool { return len(r.Header[http.CanonicalHeaderKey(name)]) > 0 })
}

// short shortens what a client says, for an answer.
func short(text string) string {
	const most = 100
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
