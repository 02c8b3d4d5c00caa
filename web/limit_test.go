package web

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCrowdWaitsForNobody: a displaced connection is closed at once, also an encrypted one whose
// client reads nothing, because the goroutine that accepts connections closes it.
func TestCrowdWaitsForNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pair(t, cert, key, 1)
	both := must.Get(tls.LoadX509KeyPair(cert, key))(t)
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		server := tls.Server(near, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{both}})
		client := tls.Client(far, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // it is not about whom it talks to
		go func() { _ = client.Handshake() }()
		must.Succeed(t, server.Handshake())
		c := newCrowd(1)
		c.change(server, http.StateNew)
		time.Sleep(time.Second)
		began := time.Now()
		added, other := net.Pipe()
		c.change(added, http.StateNew)
		if d := time.Since(began); d != 0 {
			t.Errorf("accepting waited %s", d)
		}
		if _, err := near.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("it is still open: %v", err)
		}
		_, _, _ = added.Close(), other.Close(), far.Close()
	})
}
