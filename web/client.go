package web

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// clientTimeout bounds a question to another process, clientBytes its answer.
	clientTimeout = 2 * time.Second
	clientBytes   = 16 << 20
)

// Client asks other processes. It follows no redirects, and uses no proxy.
type Client struct {
	// TLS has the authorities that are trusted. Nil: the system's.
	TLS *tls.Config
}

// Get decodes what a process answers at path into v. An address is HOST:PORT, where HTTPS is
// used if the process answers to nothing else, or begins with http:// or https://. The certificate has to be
// valid for name, or for the host of the address if that is empty.
func (c *Client) Get(ctx context.Context, address, name, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	scheme, host, found := strings.Cut(address, "://")
	if found {
		return c.get(ctx, scheme, host, name, path, v)
	}
	err := c.get(ctx, "http", address, name, path, v)
	if errors.Is(err, errEncrypted) {
		err = c.get(ctx, "https", address, name, path, v)
	}
	return err
}

// errEncrypted is that a process answers to HTTPS alone.
var errEncrypted = errors.New("it answers to https only")

func (c *Client) get(ctx context.Context, scheme, host, name, path string, v any) error {
	at := url.URL{Scheme: scheme, Host: strings.TrimSuffix(host, "/"), Path: path}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	cfg := c.TLS.Clone()
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	cfg.ServerName = name
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: cfg, DialContext: new(net.Dialer).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body := io.LimitReader(resp.Body, clientBytes)
	switch {
	case resp.StatusCode == http.StatusBadRequest && scheme == "http":
		const says = "Client sent an HTTP request to an HTTPS server."
		if text, _ := io.ReadAll(body); strings.TrimSpace(string(text)) == says {
			return errEncrypted
		}
		return errors.New("it answers " + resp.Status)
	case resp.StatusCode != http.StatusOK:
		return errors.New("it answers " + resp.Status)
	}
	if err := json.NewDecoder(body).Decode(v); err != nil {
		return fmt.Errorf("it does not answer like a replicator: %w", err)
	}
	return nil
}
