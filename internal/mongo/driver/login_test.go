package driver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/mongosim"
)

// denied checks that err is an authentication or TLS error, and that it came soon.
func denied(t *testing.T, began time.Time, err error, want string) {
	t.Helper()
	isLost(t, err)
	if e, ok := errors.AsType[*driver.AuthError](err); !ok || e.Host == "" || !strings.HasPrefix(err.Error(), want+" "+e.Host) {
		t.Errorf("the error is %v, want an AuthError that begins with %q and the host", err, want)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, secret := range []string{root.Password, "wrong-password"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestWrongLogin(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 3, Users: []mongosim.User{root}})
	for name, config := range map[string]driver.Config{
		"password": {Username: root.Name, Password: "wrong-password"},
		"user":     {Username: "nobody", Password: root.Password},
		"source":   {Username: root.Name, Password: root.Password, AuthSource: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			config.URI = set.URI()
			s := open(t, config)
			for range 3 {
				began := time.Now()
				_, err := try(t, s, "ping", 1)
				denied(t, began, err, "log in to")
				began = time.Now()
				_, err = try(t, s.Member(set.Member(0).Host()), "ping", 1)
				denied(t, began, err, "log in to")
			}
			var calls sync.WaitGroup
			began := time.Now()
			for range 16 {
				calls.Go(func() {
					_, err := try(t, s, "ping", 1)
					denied(t, began, err, "log in to")
				})
			}
			calls.Wait()
		})
	}
	t.Run("right", func(t *testing.T) {
		s := open(t, driver.Config{URI: set.URIFor(root.Name)})
		must(t, s, "find", "c")
		must(t, s.Member(other(t, set).Host()), "find", "c")
	})
	t.Run("none", func(t *testing.T) {
		s := open(t, driver.Config{URI: set.URI()})
		_, err := try(t, s, "find", "c")
		if _, lost := errors.AsType[*mongo.LostError](err); err == nil || lost {
			t.Errorf("the error is %v, want that of the server", err)
		}
	})
}

// TestServerDiesAtLogin: a connection that breaks during authentication is not an
// authentication error.
func TestServerDiesAtLogin(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.answer = func(received) (_ bson.Raw, raw []byte) { return nil, nil }
	f.start()
	s := open(t, driver.Config{URI: f.uri(), Username: "u", Password: "pw", SelectionTimeout: 300 * time.Millisecond})
	for _, c := range []mongo.Caller{s, s.Member(f.host())} {
		_, err := try(t, c, "ping", 1)
		isLost(t, err)
		if e, ok := errors.AsType[*driver.AuthError](err); ok {
			t.Errorf("the error is %v", e)
		}
	}
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPasswordReplaced: a password is read again once its file has changed, by the next connection that is made. A file
// that cannot be used changes nothing, and an error says so.
func TestPasswordReplaced(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1, Users: []mongosim.User{root}})
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, []byte("wrong-password"))
	s := open(t, driver.Config{URI: set.URI(), Username: root.Name, PasswordFile: file})
	// After a refusal the next calls have its error, without a connection, until the server is asked again.
	becomes := func(with string) {
		t.Helper()
		for ctx := within(t); ; {
			_, err := try(t, s, "find", "c")
			_, refused := errors.AsType[*driver.AuthError](err)
			switch {
			case with == "" && err == nil, with != "" && refused && strings.Contains(err.Error(), with):
				return
			case ctx.Err() != nil:
				t.Fatalf("the last error is %v, want %q", err, with)
			case refused:
				denied(t, time.Now(), err, "log in to")
			}
		}
	}
	becomes("log in to")
	write(t, file, nil)
	becomes("have changed, and cannot be used: mongo: configure")
	becomes(file + " is empty")
	write(t, file, []byte(root.Password+"\n"))
	becomes("")
	must(t, s.Member(set.Member(0).Host()), "find", "c")

	again := func() {
		t.Helper()
		if err := errors.Join(set.Member(0).Kill(), set.Member(0).Start()); err != nil {
			t.Fatal(err)
		}
	}
	write(t, file, nil)
	must(t, s, "find", "c") // by a connection that exists
	again()
	becomes("") // by a new one, with the password before
	write(t, file, []byte("wrong-password"))
	must(t, s, "find", "c")
	again()
	becomes("log in to")
}

// TestPasswordBeforeOpen: a file that changes between Parse and Open is read again.
func TestPasswordBeforeOpen(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1, Users: []mongosim.User{root}})
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, []byte("wrong-password"))
	o := parse(t, driver.Config{URI: set.URI(), Username: root.Name, PasswordFile: file})
	write(t, file, []byte(root.Password))
	s, err := driver.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	must(t, s, "find", "c")
}

// pemOf returns a certificate with its key, as servers' clients have them.
func pemOf(t *testing.T, cert tls.Certificate) []byte {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
}

// TestCertificateReplaced: so is a client certificate.
func TestCertificateReplaced(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1, Users: []mongosim.User{root}})
	caFile, cert := certificates(t)
	_, foreign := certificates(t)
	trusted := x509.NewCertPool()
	ca, err := os.ReadFile(caFile)
	if err != nil || !trusted.AppendCertsFromPEM(ca) {
		t.Fatal(err)
	}
	host := terminate(t, set.Member(0).Host(),
		&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted})
	file := filepath.Join(t.TempDir(), "client.pem")
	for name, config := range map[string]driver.Config{
		"flag":   {CertificateKeyFile: file},
		"string": {TLS: true},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, file, pemOf(t, foreign))
			config.URI, config.CAFile, config.Username, config.Password = "mongodb://"+host+"/?directConnection=true", caFile, root.Name, root.Password
			if config.CertificateKeyFile == "" {
				config.URI += "&tlsCertificateKeyFile=" + file
			}
			s := open(t, config)
			began := time.Now()
			_, err := try(t, s, "ping", 1)
			denied(t, began, err, "agree on TLS with")
			write(t, file, []byte("-----BEGIN"))
			_, err = try(t, s, "ping", 1)
			denied(t, began, err, "agree on TLS with")
			write(t, file, pemOf(t, cert))
			must(t, s.Member(s.Hosts()[0]), "find", "c")
			for ctx := within(t); ; { // until the server is monitored with it
				if _, err = try(t, s, "find", "c"); err == nil {
					break
				}
				denied(t, time.Now(), err, "agree on TLS with")
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// certificates creates an authority and a certificate for 127.0.0.1, and returns the
// authority's file.
func certificates(t *testing.T) (caFile string, cert tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return caFile, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// terminate starts a proxy that speaks TLS in front of a host.
func terminate(t *testing.T, host string, config *tls.Config) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
	group.Go(func() {
		for {
			front, err := listener.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("tcp", host)
			if err != nil {
				_ = front.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{front, back}, {back, front}} {
				group.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
					_ = pair[1].Close()
				})
			}
		}
	})
	return listener.Addr().String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	set := start(t, mongosim.Options{Members: 1, Users: []mongosim.User{root}})
	caFile, cert := certificates(t)
	otherCA, _ := certificates(t)
	plain := set.Member(0).Host()
	host := terminate(t, plain, &tls.Config{Certificates: []tls.Certificate{cert}})
	strict := terminate(t, plain, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert})
	login := driver.Config{Username: root.Name, Password: root.Password}
	with := func(host, caFile string) driver.Config {
		c := login
		c.URI, c.CAFile = "mongodb://"+host+"/?directConnection=true", caFile
		return c
	}
	t.Run("right", func(t *testing.T) {
		must(t, open(t, with(host, caFile)), "find", "c")
	})
	for name, test := range map[string]struct {
		config driver.Config
		want   string
	}{
		"unknown authority":     {with(host, otherCA), "agree on TLS with"},
		"no authority":          {driver.Config{URI: "mongodb://" + host + "/?directConnection=true", TLS: true}, "agree on TLS with"},
		"no client certificate": {with(strict, caFile), "agree on TLS with"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, test.config)
			began := time.Now()
			_, err := try(t, s, "ping", 1)
			denied(t, began, err, test.want)
			began = time.Now()
			_, err = try(t, s.Member(s.Hosts()[0]), "ping", 1)
			denied(t, began, err, test.want)
		})
	}
}
