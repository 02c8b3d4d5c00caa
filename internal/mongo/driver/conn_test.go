package driver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"pgregory.net/rapid"
)

// arrived is a connection on which all data have arrived, in pieces.
type arrived struct {
	net.Conn
	pieces [][]byte
	reads  int
}

func (c *arrived) Read(p []byte) (int, error) {
	c.reads++
	if len(c.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

// TestReadAhead: the bytes read are those that arrived, however they are split.
func TestReadAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 3*readAhead), 1, 8)
		under := &arrived{}
		var all []byte
		for i, size := range sizes.Draw(t, "pieces") {
			piece := bytes.Repeat([]byte{byte(i + 1)}, size)
			under.pieces = append(under.pieces, piece)
			all = append(all, piece...)
		}
		c := newConn(under)
		var got []byte
		for _, size := range sizes.Draw(t, "reads") {
			p := make([]byte, min(size, len(all)-len(got)))
			if _, err := io.ReadFull(c, p); err != nil {
				t.Fatal(err)
			}
			got = append(got, p...)
		}
		rest, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(append(got, rest...), all) {
			t.Fatalf("%d bytes came of %d, %v", len(got)+len(rest), len(all), err)
		}
	})
}

// TestReads: replies that have arrived together are read by one system call, and a large
// reply is not read in pieces of the buffer's size.
func TestReads(t *testing.T) {
	for _, tt := range []struct {
		name        string
		size, count int
		want        int
	}{
		{"one small reply", 200, 1, 1},
		{"ten small replies", 200, 10, 1},
		{"a large one", 16 << 20, 1, 2},
	} {
		under := &arrived{pieces: [][]byte{make([]byte, tt.size*tt.count)}}
		c := newConn(under)
		for range tt.count {
			for _, part := range []int{4, tt.size - 4} { // as the driver does
				if _, err := io.ReadFull(c, make([]byte, part)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if under.reads != tt.want {
			t.Errorf("%s: %d reads, want %d", tt.name, under.reads, tt.want)
		}
	}
}

// TestPassing: of a long message each part is reported that has been sent, not only its end.
func TestPassing(t *testing.T) {
	t.Parallel()
	near, peer := net.Pipe()
	defer func() { _, _ = near.Close(), peer.Close() }()
	c, passed := newConn(near), make(chan struct{}, 1)
	c.passing(func() {
		select {
		case passed <- struct{}{}:
		default:
		}
	})
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, 1000))
		wrote <- err
	}()
	for range 2 {
		if _, err := io.ReadFull(peer, make([]byte, 500)); err != nil {
			t.Fatal(err)
		}
		<-passed
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = peer.Write([]byte("reply")) }()
	if _, err := c.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	<-passed
}

// TestBothWrite: if both sides of a connection write more than it can buffer before they
// read, both succeed, with TLS and without. Bytes received during a write are read in
// order.
func TestBothWrite(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	pattern := make([]byte, size)
	for i := range pattern {
		pattern[i] = byte(i >> 8 * (i & 1)) //nolint:gosec // Any pattern will do.
	}
	for _, secure := range []bool{false, true} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		for _, c := range []net.Conn{raw, peer} {
			if err := errors.Join(c.(*net.TCPConn).SetReadBuffer(64<<10), c.(*net.TCPConn).SetWriteBuffer(64<<10)); err != nil {
				t.Fatal(err)
			}
		}
		near := net.Conn(newConn(raw))
		if secure {
			server, client := tlsConfigs(t)
			peer, near = tls.Server(peer, server), tls.Client(near, client)
		}
		// A side that hangs is stopped.
		stop := time.AfterFunc(20*time.Second, func() { _, _ = raw.Close(), peer.Close() })
		exchange := func(c net.Conn) error {
			for range 2 {
				if _, err := c.Write(pattern); err != nil {
					return err
				}
				got := make([]byte, size)
				if _, err := io.ReadFull(c, got); err != nil {
					return err
				}
				if !bytes.Equal(got, pattern) {
					return errors.New("it is not what was written")
				}
			}
			return nil
		}
		there := make(chan error)
		go func() { there <- exchange(peer) }()
		if err := errors.Join(exchange(near), <-there); err != nil {
			t.Errorf("TLS %v: %v", secure, err)
		}
		stop.Stop()
		_, _ = near.Close(), peer.Close()
	}
}

// TestWriteDeadline: a blocked write ends at its deadline, whether that was set before or
// during the write, and when its connection is closed.
func TestWriteDeadline(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, meanwhile func(c *conn)
		want              error
	}{
		"before":    {func(c *conn) { _ = c.SetWriteDeadline(time.Now().Add(stuck / 2)) }, func(*conn) {}, os.ErrDeadlineExceeded},
		"later":     {func(c *conn) { _ = c.SetDeadline(time.Now().Add(3 * stuck / 2)) }, func(*conn) {}, os.ErrDeadlineExceeded},
		"meanwhile": {func(*conn) {}, func(c *conn) { _ = c.SetWriteDeadline(time.Now()) }, os.ErrDeadlineExceeded},
		"closed":    {func(*conn) {}, func(c *conn) { _ = c.Close() }, net.ErrClosed},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(raw)
		tt.before(c)
		timer := time.AfterFunc(2*stuck, func() { tt.meanwhile(c) })
		if _, err := c.Write(make([]byte, 64<<20)); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		timer.Stop()
		_, _ = c.Close(), ln.Close()
	}
}

// tlsConfigs returns the configs of a server and of a client that trusts it.
func tlsConfigs(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{RootCAs: pool, ServerName: "test"}
}

// driven is one of the driver's connections, as far as a dialer uses it.
type driven struct {
	mnet.ReadWriteCloser
	mnet.Describer
	local net.Addr
}

func (d driven) LocalAddress() address.Address { return address.Address(d.local.String()) }

// TestUnixSockets: connections over one unix socket are distinguished.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mongodb-27017.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var d dialer
	var conns []net.Conn
	for range 3 {
		c, err := d.DialContext(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		conns = append(conns, c)
	}
	for i, c := range conns {
		if under := d.of(mnet.NewConnection(driven{local: c.LocalAddr()})); net.Conn(under) != c {
			t.Errorf("connection %d is taken for another one", i)
		}
	}
	_ = conns[1].Close()
	for i, open := range []bool{true, false, true} {
		if under := d.of(mnet.NewConnection(driven{local: conns[i].LocalAddr()})); (under != nil) != open {
			t.Errorf("connection %d: open %v, want %v", i, under != nil, open)
		}
	}
}

// bound is a connection with a local address.
type bound struct{ net.Conn }

func (bound) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 40_000} }

// Close implements net.Conn.
func (bound) Close() error { return nil }

// TestOneLocalAddress: connections to the addresses of one name are distinguished, although
// the system has given them the same local port.
func TestOneLocalAddress(t *testing.T) {
	t.Parallel()
	var d dialer
	conns := []*conn{d.add(bound{}), d.add(bound{})}
	for i, c := range conns {
		if under := d.of(mnet.NewConnection(driven{local: c.LocalAddr()})); under != c {
			t.Errorf("connection %d is taken for another one", i)
		}
	}
	_ = conns[0].Close()
	for i, c := range conns {
		if under := d.of(mnet.NewConnection(driven{local: c.LocalAddr()})); (under != nil) != (i == 1) {
			t.Errorf("after the first one was closed, connection %d is open: %v", i, under != nil)
		}
	}
}
