package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

const (
	first  = "0123456789abcdef"
	second = "fedcba9876543210"
)

// TestTokens: the file is read for each change, and one that cannot be read allows none. No error has
// a token.
func TestTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	put := func(text string) { must.Succeed(t, os.WriteFile(file, []byte(text), 0o600)) }
	put("# of the team\n\nops " + first + "\r\n" + second + "\n")
	tokens := must.Get(NewTokens(file, "third-third-third"))(t)
	for secret, want := range map[string]string{first: "ops", second: "token", "third-third-third": "token", "ops": "", "": "", "#": "", first + "\n": "", first[:15]: ""} {
		if name, err := tokens.find(secret); name != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, errToken) {
			t.Errorf("%q: %q, %v", secret, name, err)
		}
	}
	put("new " + second)
	if _, err := tokens.find(first); !errors.Is(err, errToken) {
		t.Errorf("a token that was removed: %v", err)
	}
	if name, err := tokens.find(second); err != nil || name != "new" {
		t.Errorf("%q, %v", name, err)
	}
	for text, want := range map[string]string{
		"a b " + first: "line 1: want a token, or a name and a token", "\nshort-token": "line 2: the token has 11 characters", "": "it has no token", "# x": "it has no token",
		strings.Repeat(first+"\n", 5000): "it is larger than 64 KiB",
	} {
		put(text)
		for _, err := range []error{failure(NewTokens(file, "")), failure(tokens.find(first))} {
			if err == nil || errors.Is(err, errToken) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), first) {
				t.Errorf("%.20q: %v", text, err)
			}
		}
	}
	must.Succeed(t, os.Remove(file))
	if _, err := tokens.find("third-third-third"); err == nil || errors.Is(err, errToken) {
		t.Errorf("without the file: %v", err)
	}
	if _, err := NewTokens("", "short"); err == nil {
		t.Error("a short token in the environment is taken")
	}
}

// failure is the error of two results.
func failure[T any](_ T, err error) error { return err }

// pair writes a certificate with a serial number.
func pair(t *testing.T, cert, key string, number int64) {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(number), NotAfter: time.Now().Add(time.Hour)}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))(t)
	must.Succeed(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	if key != "" {
		must.Succeed(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Get(x509.MarshalPKCS8PrivateKey(private))(t)}), 0o600))
	}
}

// TestCertificate: files that were replaced are used from the next connection on; what cannot be
// used, such as one that was replaced without its key, leaves the last one, and is said once.
func TestCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	if _, err := LoadCertificate(cert, key, logger); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("%v", err)
	}
	stamp := time.Now()
	touch := func() {
		stamp = stamp.Add(time.Second) // the clock of the disk may be coarse
		for _, name := range []string{cert, key} {
			must.Succeed(t, os.Chtimes(name, stamp, stamp))
		}
	}
	pair(t, cert, key, 1)
	touch()
	c := must.Get(LoadCertificate(cert, key, logger))(t)
	if c.Config().MinVersion != tls.VersionTLS12 {
		t.Errorf("TLS %x", c.Config().MinVersion)
	}
	is := func(when string, want int64) {
		t.Helper()
		got := must.Get(c.Config().GetCertificate(nil))(t)
		leaf := must.Get(x509.ParseCertificate(got.Certificate[0]))(t)
		if leaf.SerialNumber.Int64() != want {
			t.Errorf("%s: certificate %s, want %d", when, leaf.SerialNumber, want)
		}
	}
	is("at first", 1)
	pair(t, cert, "", 2)
	touch()
	is("with the key of another one", 1)
	is("and again", 1)
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
	pair(t, cert, key, 3)
	touch()
	is("replaced", 3)
	must.Succeed(t, os.Remove(key))
	is("without a key", 3)
	pair(t, cert, key, 4)
	touch()
	is("there again", 4)
	pair(t, cert, key, 5)
	readable := must.Get(os.ReadFile(key))(t)
	must.Succeed(t, os.WriteFile(key, make([]byte, len(readable)), 0o600))
	touch()
	is("not readable yet", 4)
	must.Succeed(t, os.WriteFile(key, readable, 0o600))
	stamp = stamp.Add(-time.Second)
	touch()
	is("readable, and otherwise as it was", 5)
}
