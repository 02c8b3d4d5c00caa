package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/web"
)

// TestHTTPFlags: flags that are refused before anything is served.
func TestHTTPFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags httpFlags
		want  string
	}{
		{httpFlags{}, ""},
		{httpFlags{Listen: "none"}, ""},
		{httpFlags{Listen: ":9216", ListenHosts: []string{"mirror.example"}}, ""},
		{httpFlags{Listen: "9216"}, `--listen: "9216" is not of the form HOST:PORT`},
		{httpFlags{TLSCert: "c.pem"}, "--tls-cert and --tls-key belong together"},
		{httpFlags{TLSKey: "k.pem"}, "--tls-cert and --tls-key belong together"},
		{httpFlags{ListenHosts: []string{"mirror:9216"}}, `--listen-hosts: "mirror:9216" is not a name without a port`},
		{httpFlags{Pprof: true}, ""},
		{httpFlags{Pprof: true, Listen: "[::1]:1"}, ""},
		{httpFlags{Pprof: true, Listen: "localhost:1"}, ""},
		{httpFlags{Pprof: true, Listen: ":1"}, "--pprof: profiles are served on a loopback address only, not on :1"},
		{httpFlags{Pprof: true, Listen: "10.0.0.1:1"}, "--pprof: profiles are served on a loopback address only"},
	} {
		err := tt.flags.checkHTTP()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)) {
			t.Errorf("%+v: %v", tt.flags, err)
		}
	}
}

// TestHTTPFaults: files that cannot be used, and an address that is taken, are errors at the start.
// Without --listen any port will do.
func TestHTTPFaults(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for flags, want := range map[*httpFlags]string{
		{Listen: "127.0.0.1:0", TokenFile: "/none"}:                   "--token-file, REPLICATOR_TOKEN: read the tokens in /none: no such file",
		{Listen: "127.0.0.1:0", TokenFile: write(t, "short")}:         "the token has 5 characters, and 16 are the least",
		{Listen: "127.0.0.1:0", TLSCert: "/none", TLSKey: "/none"}:    "--tls-cert, --tls-key: read the certificate in /none",
		{Listen: "127.0.0.1:0", TokenFile: write(t, "# nothing\n\n")}: "it has no token",
	} {
		if _, err := flags.openHTTP(t.Context(), nil, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", flags, err)
		}
	}
	first := must.Get((&httpFlags{}).openHTTP(t.Context(), nil, log))(t)
	defer first.Close() //nolint:errcheck // the test is over
	second := must.Get((&httpFlags{}).openHTTP(t.Context(), nil, log))(t)
	defer second.Close() //nolint:errcheck // the test is over
	if first.Addr().String() == second.Addr().String() || !web.IsLoopback(first.Addr()) || !web.IsLoopback(second.Addr()) {
		t.Errorf("%s, %s", first.Addr(), second.Addr())
	}
	if _, err := (&httpFlags{Listen: first.Addr().String()}).openHTTP(t.Context(), nil, log); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("%v", err)
	}
	if at, err := (&httpFlags{Listen: noListen}).openHTTP(t.Context(), nil, log); at != nil || err != nil {
		t.Errorf("%v, %v", at, err)
	}
}

// TestSaid: where the server is, and in one line what it lacks on an address of the network.
func TestSaid(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		front front
		at    string
		want  []string
	}{
		{front{}, "127.0.0.1:0", []string{`page=http://127.0.0.1:`, "!level=WARN"}},
		{front{}, "0.0.0.0:0", []string{`page=http://127.0.0.1:`, "level=WARN", "--tls-cert", "--token-file"}},
		{front{tokens: &web.Tokens{}}, "0.0.0.0:0", []string{"level=WARN", "--tls-cert", "!--token-file"}},
	} {
		tt.front.Listener = must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp4", tt.at))(t)
		var log bytes.Buffer
		tt.front.say(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
		must.Succeed(t, tt.front.Close())
		for _, want := range tt.want {
			text, absent := strings.CutPrefix(want, "!")
			if strings.Contains(log.String(), text) == absent {
				t.Errorf("%s: want %s in %s", tt.at, want, log.String())
			}
		}
		if strings.Count(log.String(), "level=WARN") > 1 {
			t.Error(log.String())
		}
	}
}

// certificate writes a certificate for a name and its key, and returns the files.
func certificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))(t)
	secret := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must.Succeed(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must.Succeed(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// taking takes every request.
type taking struct{ web.Requests }

func (taking) Ask(_ context.Context, r web.Request) (string, error) {
	return r.Kind + " by " + r.By, nil
}

// TestServed: the flags reach the server, and a process with HTTPS is asked by replicator status.
func TestServed(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, "mirror.example")
	flags := &httpFlags{
		Listen: "127.0.0.1:0", ListenHosts: []string{"mirror.example"}, TLSCert: cert, TLSKey: key,
		TokenFile: write(t, "ops 0123456789abcdef\n"), Pprof: true,
	}
	must.Succeed(t, flags.checkHTTP())
	log := slog.New(slog.DiscardHandler)
	at := must.Get(flags.openHTTP(t.Context(), []string{"REPLICATOR_TOKEN=fedcba9876543210"}, log))(t)
	cfg := web.Config{Metrics: prometheus.NewRegistry(), Log: log, Link: web.Link{
		Requests: taking{},
		Status: func() any {
			return map[string]any{"link": "dr", "verdict": map[string]any{"name": "steady"}, "lease": map[string]any{"process": "p"}}
		},
	}}
	at.configure(&cfg, flags)
	ctx, stop := context.WithCancelCause(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := at.run(ctx, cfg); err != nil {
			t.Error(err)
		}
	})
	defer serving.Wait()
	defer stop(errors.New("the test is over"))

	ask := must.Get(newAsker(cert))(t)
	place := place{address: at.Addr().String(), name: "mirror.example"}
	if s, err := ask.ask(t.Context(), place, "dr", "p"); err != nil || s.Link != "dr" {
		t.Errorf("%v, %+v", err, s)
	}
	if _, err := must.Get(newAsker(""))(t).ask(t.Context(), place, "dr", "p"); err == nil || !strings.Contains(err.Error(), "--tls-ca") {
		t.Errorf("an authority that is not trusted: %v", err)
	}
	place.name = "other.example"
	if _, err := ask.ask(t.Context(), place, "dr", "p"); err == nil || !strings.Contains(err.Error(), "other.example") {
		t.Errorf("a certificate of another name: %v", err)
	}

	transport := &http.Transport{TLSClientConfig: ask.client.TLS.Clone(), DisableKeepAlives: true}
	transport.TLSClientConfig.ServerName = "mirror.example"
	call := func(method, host, path, token, body string) (int, string) {
		req := must.Get(http.NewRequestWithContext(t.Context(), method, "https://"+at.Addr().String()+path, strings.NewReader(body)))(t)
		req.Host = host
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		must.Succeed(t, err)
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode, string(must.Get(io.ReadAll(resp.Body))(t))
	}
	const pause = `{"kind": "pause"}`
	for _, tt := range []struct {
		method, host, path, token, body string
		code                            int
		want                            string
	}{
		{"GET", "mirror.example", "/status", "", "", 200, `"dr"`},
		{"GET", "evil.example", "/status", "", "", 421, "--listen-hosts"},
		{"GET", "localhost", "/debug/pprof/", "", "", 200, "goroutine"},
		{"POST", "mirror.example", "/requests", "", pause, 401, "bearer token"},
		{"POST", "mirror.example", "/requests", "0123456789abcdef", pause, 202, "pause by ops"},
		{"POST", "mirror.example", "/requests", "fedcba9876543210", pause, 202, "pause by token"},
	} {
		if code, got := call(tt.method, tt.host, tt.path, tt.token, tt.body); code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("%s %s of %s: %d %s", tt.method, tt.path, tt.host, code, got)
		}
	}
}
