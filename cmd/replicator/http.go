package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/web"
	"github.com/oplogrep/replicator/web/page"
)

const (
	// defaultListen is where a process serves HTTP unless it is told otherwise.
	defaultListen = "127.0.0.1:9216"
	// noListen is --listen of a process that serves nothing.
	noListen = "none"
	// tokenVariable has the token where no file does.
	tokenVariable = "token"
)

// httpFlags are the settings of the HTTP server.
type httpFlags struct {
	Listen      string   `group:"HTTP" placeholder:"HOST:PORT" help:"Serve the page, /status, /metrics and so on (docs/http.md) on this address, or on none. Default: 127.0.0.1:9216, or another port if that is in use."`
	ListenHosts []string `group:"HTTP" sep:"none" placeholder:"NAME" help:"A name of this machine, or of a proxy before it, in addresses of the page. Repeat the flag for more. Loopback names need none."`
	TLSCert     string   `group:"HTTP" name:"tls-cert" placeholder:"FILE" help:"Serve HTTPS with the certificate in this PEM file, which is read again when it has changed."`
	TLSKey      string   `group:"HTTP" name:"tls-key" placeholder:"FILE" help:"The key of --tls-cert."`
	TokenFile   string   `group:"HTTP" placeholder:"FILE" help:"Bearer tokens that allow changes (pause, throttle, …): a line for each, or a name and a token. The environment variable REPLICATOR_TOKEN can have one."`
	Pprof       bool     `group:"HTTP" help:"Serve profiles of the process at /debug/pprof/, on a loopback address only."`
}

// check returns an error for invalid flags.
func (f *httpFlags) checkHTTP() error {
	var faults []error
	if f.Listen != "" && f.Listen != noListen {
		if err := checkAddress("--listen", f.Listen); err != nil {
			faults = append(faults, err)
		}
	}
	if (f.TLSCert == "") != (f.TLSKey == "") {
		faults = append(faults, errors.New("--tls-cert and --tls-key belong together: give both, or none"))
	}
	for _, name := range f.ListenHosts {
		if name == "" || strings.ContainsAny(name, ":/, ") {
			faults = append(faults, fmt.Errorf("--listen-hosts: %q is not a name without a port: repeat the flag for each", name))
		}
	}
	if host, _, err := net.SplitHostPort(cmp.Or(f.Listen, defaultListen)); f.Pprof && err == nil && host != "localhost" && !web.IsLoopback(address(net.JoinHostPort(host, "0"))) {
		faults = append(faults, fmt.Errorf("--pprof: profiles are served on a loopback address only, not on %s: --listen=%s", f.Listen, defaultListen))
	}
	return errors.Join(faults...)
}

// address is an address as text.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// front has the listener of a process and its settings.
type front struct {
	net.Listener
	tokens *web.Tokens
	tls    *tls.Config
}

// open listens. It returns nil if nothing is to be served. The environment may have a token.
func (f *httpFlags) openHTTP(ctx context.Context, environ []string, log *slog.Logger) (*front, error) {
	if f.Listen == noListen {
		return nil, nil //nolint:nilnil // nil is a process that serves nothing
	}
	p := &front{}
	var err error
	if more, _ := lookup(environ, tokenVariable); f.TokenFile != "" || more != "" {
		if p.tokens, err = web.NewTokens(f.TokenFile, more); err != nil {
			return nil, cli.Usage(fmt.Errorf("--token-file, %s: %w", envName(tokenVariable), err))
		}
	}
	if f.TLSCert != "" {
		cert, err := web.LoadCertificate(f.TLSCert, f.TLSKey, log)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--tls-cert, --tls-key: %w", err))
		}
		p.tls = cert.Config()
	}
	listen := func(at string) (net.Listener, error) { return new(net.ListenConfig).Listen(ctx, "tcp", at) }
	p.Listener, err = listen(cmp.Or(f.Listen, defaultListen))
	if err != nil && f.Listen == "" {
		// No setting asks for that port.
		p.Listener, err = listen("127.0.0.1:0")
	}
	if err != nil {
		return nil, listenError(fmt.Errorf("listen on %s for --listen: %w", f.Listen, err))
	}
	return p, nil
}

// say says where the server is, and what protects it.
func (p *front) say(ctx context.Context, log *slog.Logger) {
	scheme := "http"
	if p.tls != nil {
		scheme = "https"
	}
	log.LogAttrs(ctx, slog.LevelInfo, "serving status, health and metrics",
		slog.String(keyListen, p.Addr().String()), slog.String(keyPage, scheme+"://"+reachable(p.Addr())+"/"))
	if web.IsLoopback(p.Addr()) {
		return
	}
	var lacks []string
	if p.tls == nil {
		lacks = append(lacks, "without TLS (--tls-cert), everybody on the way can read and change the traffic")
	}
	if p.tokens == nil {
		lacks = append(lacks, "without a token (--token-file), no client can pause, throttle or copy again from there")
	}
	if len(lacks) > 0 {
		log.LogAttrs(ctx, slog.LevelWarn, "the status is served to the network, without a login", slog.String(keyWhy, strings.Join(lacks, "; ")))
	}
}

const (
	keyPage = "page"
	keyWhy  = "why"
)

// reachable is an address that can be put into a browser on this machine.
func reachable(a net.Addr) string {
	host, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// configure sets the fields of the server's Config from the flags.
func (p *front) configure(cfg *web.Config, f *httpFlags) {
	cfg.Address, cfg.Tokens, cfg.TLS = p.Addr(), p.tokens, p.tls
	cfg.Hosts, cfg.Pprof, cfg.Version = f.ListenHosts, f.Pprof, cli.Version()
	cfg.Page = page.Handler()
}

// portOf returns the port that a process serves on, empty if it serves nothing.
func portOf(p *front) string {
	if p == nil {
		return ""
	}
	_, port, _ := net.SplitHostPort(p.Addr().String())
	return port
}
