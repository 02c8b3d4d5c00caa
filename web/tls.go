package web

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"

	"github.com/oplogrep/replicator/internal/filestamp"
)

// Certificate is a certificate with its key, in PEM files that may be replaced while they are
// used: both are read again by the first connection after one of them has changed. Where they
// cannot be used the last one remains.
type Certificate struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex // guards the rest
	current *tls.Certificate
	of      [2]filestamp.Stamp
	refused [2]filestamp.Stamp // the last ones that could not be used
}

const (
	keyFile  = "file"
	keyError = "error"
)

// LoadCertificate reads a certificate and its key. Later failures go to log.
func LoadCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, log: log}
	of, err := c.stamps()
	if err == nil {
		err = c.load(of)
	}
	if err != nil {
		return nil, fmt.Errorf("read the certificate in %s and its key in %s: %w", cert, key, err)
	}
	return c, nil
}

// Config returns the settings of a server that has the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get, NextProtos: []string{"http/1.1"}}
}

func (c *Certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, err := c.stamps()
	if err == nil && of == c.of {
		return c.current, nil
	}
	if err == nil {
		if err = c.load(of); err == nil {
			c.log.Info("the certificate was read again", slog.String(keyFile, c.cert))
			return c.current, nil
		}
	}
	if of != c.refused { // said once for each change
		c.refused = of
		c.log.Warn("the new certificate cannot be used: the last one remains", slog.String(keyFile, c.cert), slog.String(keyError, err.Error()))
	}
	return c.current, nil
}

// stamps returns those of the files, those of missing ones empty.
func (c *Certificate) stamps() (v [2]filestamp.Stamp, err error) {
	for i, name := range []string{c.cert, c.key} {
		stamp, e := filestamp.Of(name)
		if e != nil {
			err = e
		}
		v[i] = stamp
	}
	return v, err
}

func (c *Certificate) load(of [2]filestamp.Stamp) error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.current, c.of = &pair, of
	return nil
}
