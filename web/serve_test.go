package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

const host = "Host: localhost"

// TestSlowClients: a client that sends or reads too slowly is cut off, and its request has no effect.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	requests := &asked{}
	cfg := config(requests)
	cfg.Link.Status = func() any { return strings.Repeat("x", 1<<20) }
	for name, tt := range map[string]struct {
		do   func(t *testing.T, c net.Conn)
		want time.Duration
	}{
		"says nothing": {func(*testing.T, net.Conn) {}, readTimeout},
		"headers": {func(_ *testing.T, c net.Conn) {
			go trickle(c, "GET /status HTTP/1.1\r\nHost: localhost\r\nX: y")
		}, readTimeout},
		"body": {func(t *testing.T, c net.Conn) {
			send(t, c, "POST /requests HTTP/1.1", host, "Content-Type: application/json", "Content-Length: 100", "", "")
			go trickle(c, `{"kind": "pause", "why": "slowly"}`)
		}, readTimeout},
		"idle": {func(t *testing.T, c net.Conn) {
			send(t, c, "GET /healthz HTTP/1.1", host, "", "")
			if code, _ := reply(t, c); code != http.StatusOK {
				t.Errorf("%d", code)
			}
		}, idleTimeout},
	} {
		served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
			c := p.dial(t)
			tt.do(t, c)
			// The rest of the request is then discarded for half a second.
			if took := closedAfter(t, c); took < tt.want || took > tt.want+time.Second {
				t.Errorf("%s: cut off after %s, want %s", name, took, tt.want)
			}
			time.Sleep(2 * time.Second) // trickle ends
		})
	}
	if len(requests.list) > 0 {
		t.Errorf("%+v", requests.list)
	}
}

// trickle sends a byte each second.
func trickle(c net.Conn, text string) {
	for _, b := range []byte(text) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// TestSlowReader: an answer that is not taken ends after a time.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	cfg := config(nil)
	cfg.Link.Status = func() any { return strings.Repeat("x", 1<<20) }
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		c := p.dial(t)
		send(t, c, "GET /status HTTP/1.1", host, "", "")
		time.Sleep(writeTimeout + time.Second)
		if n, err := io.Copy(io.Discard, c); err != nil || n > 64<<10 {
			t.Errorf("%d bytes came, %v", n, err)
		}
	})
}

// TestWire: requests that are not quite HTTP, or too large.
func TestWire(t *testing.T) {
	t.Parallel()
	requests := &asked{}
	const post = "POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	for _, tt := range []struct {
		send string
		code int
	}{
		{"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n", 200},
		{"GET /status HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("y", headerBytes+8<<10) + "\r\n\r\n", 431},
		{"GET /status?" + strings.Repeat("y", headerBytes+8<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 431},
		{"GET /status HTTP/1.1\r\n\r\n", 400},
		{"GET /status HTTP/1.0\r\n\r\n", 421},
		{"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400},
		{"GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n", 421},
		{"GET /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		{post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		{post + "Content-Length: -1\r\n\r\n", 400},
		{post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
		{post + "Content-Length: 65537\r\n\r\n" + `{"kind":"pause","args":{"x":"` + strings.Repeat("y", 65505) + `"}}`, 413},
		{post + "Transfer-Encoding: chunked\r\n\r\n11000\r\n" + `{"kind":"pause","args":{"x":"` + strings.Repeat("y", 0x11000-32) + `"}}` + "\r\n0\r\n\r\n", 413},
		{"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404},
		{"OPTIONS /requests HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", 405},
		{"TRACE /status HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", 404},
		{"PUT /requests HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{"DELETE /status HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405},
		{"get /status HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404},
	} {
		served(t, config(requests), func(t *testing.T, p *pipes, _ func()) {
			c := p.dial(t)
			go func() { _, _ = io.WriteString(c, tt.send) }()
			code, _ := reply(t, c)
			if code != tt.code {
				t.Errorf("%.60q: %d, want %d", tt.send, code, tt.code)
			}
		})
	}
	if len(requests.list) > 0 {
		t.Errorf("%+v", requests.list)
	}
}

// TestHead: HEAD is GET without a body, and does not open a stream.
func TestHead(t *testing.T) {
	t.Parallel()
	served(t, config(&asked{}), func(t *testing.T, p *pipes, _ func()) {
		for _, path := range []string{"/", "/status", "/healthz", "/metrics", "/history", "/requests", "/links", "/openapi.json", "/events"} {
			c := p.dial(t)
			send(t, c, "HEAD "+path+" HTTP/1.1", host, "Connection: close", "", "")
			text := string(must.Get(io.ReadAll(c))(t))
			if !strings.HasPrefix(text, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(text, "\r\n\r\n") {
				t.Errorf("%s: %q", path, text)
			}
		}
	})
}

// TestShutdown: a request that is under way is answered, and then nobody is.
func TestShutdown(t *testing.T) {
	t.Parallel()
	var arrived, answer chan struct{} // of the bubble
	cfg := config(nil)
	cfg.Link.Status = func() any {
		arrived <- struct{}{}
		<-answer
		return "there"
	}
	served(t, cfg, func(t *testing.T, p *pipes, stop func()) {
		arrived, answer = make(chan struct{}), make(chan struct{})
		c := p.dial(t)
		send(t, c, "GET /status HTTP/1.1", host, "", "")
		<-arrived
		ended := make(chan struct{})
		go func() { stop(); close(ended) }()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it did not wait for the request")
		default:
		}
		close(answer)
		if code, body := reply(t, c); code != http.StatusOK || body != "\"there\"\n" {
			t.Errorf("%d %s", code, body)
		}
		<-ended
	})
}

// TestShutdownIsShort: a client that does not take its answer does not hold up the end.
func TestShutdownIsShort(t *testing.T) {
	t.Parallel()
	served(t, config(nil), func(t *testing.T, p *pipes, stop func()) {
		c := p.dial(t)
		send(t, c, "GET /status HTTP/1.1", host, "", "")
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took > lastTimeout+time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// TestServeFails: a listener that fails ends the server with an error.
func TestServeFails(t *testing.T) {
	t.Parallel()
	ln := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	must.Succeed(t, ln.Close())
	if err := server(t, config(nil)).Serve(t.Context(), ln); err == nil || !strings.HasPrefix(err.Error(), "web: serve on 127.0.0.1:") {
		t.Errorf("%v", err)
	}
}

// TestCrowd: connections that say nothing do not keep anybody out: the quietest goes.
func TestCrowd(t *testing.T) {
	t.Parallel()
	served(t, config(nil), func(t *testing.T, p *pipes, _ func()) {
		kept := p.dial(t)
		send(t, kept, "GET /healthz HTTP/1.1", host, "", "")
		reply(t, kept)
		time.Sleep(time.Second)
		silent := make([]net.Conn, maxConnections-1)
		for i := range silent {
			silent[i] = p.dial(t)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		for range 3 {
			c := p.dial(t)
			send(t, c, "GET /healthz HTTP/1.1", host, "Connection: close", "", "")
			if code, _ := reply(t, c); code != http.StatusOK {
				t.Errorf("%d", code)
			}
			synctest.Wait()
		}
		// That which had been quiet for the longest has gone, the others have not.
		if n, err := kept.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("the quietest has %d, %v", n, err)
		}
		gone := 0
		for _, c := range silent {
			must.Succeed(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				gone++
			}
		}
		if gone != 0 {
			t.Errorf("%d others have gone", gone)
		}
	})
}

// TestNothingOutlivesServe: a handler that waits for the target when the process ends is cut off, and has
// ended when Serve returns: what it uses is closed then.
func TestNothingOutlivesServe(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/links", "/requests"} {
		var running atomic.Int64
		wait := func(ctx context.Context) (any, error) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			if path == "/links" && !errors.Is(context.Cause(ctx), errEnded) {
				t.Errorf("%s ended by %v", path, context.Cause(ctx))
			}
			time.Sleep(time.Second) // on its way out
			return nil, context.Cause(ctx)
		}
		cfg := config(patientRequests(wait))
		cfg.Links = wait
		served(t, cfg, func(t *testing.T, p *pipes, stop func()) {
			c := p.dial(t)
			send(t, c, "GET "+path+" HTTP/1.1", host, "", "")
			synctest.Wait()
			if running.Load() != 1 {
				t.Fatalf("%s is not asked", path)
			}
			began := time.Now()
			stop()
			if n := running.Load(); n != 0 {
				t.Errorf("%s: %d handlers outlive Serve", path, n)
			}
			if took := time.Since(began); took > lastTimeout+2*time.Second {
				t.Errorf("%s: the end took %s", path, took)
			}
		})
	}
}

// patientRequests are Requests that wait.
type patientRequests func(ctx context.Context) (any, error)

func (w patientRequests) Ask(ctx context.Context, _ Request) (string, error) {
	_, err := w(ctx)
	return "", err
}
func (w patientRequests) List(ctx context.Context) (any, error) { return w(ctx) }

// TestCrowdOfActive: if all connections are being answered the new one goes, and none of them.
func TestCrowdOfActive(t *testing.T) {
	t.Parallel()
	c := newCrowd(2)
	conns := make([]net.Conn, 4)
	for i := range conns {
		ours, theirs := net.Pipe()
		defer ours.Close()   //nolint:errcheck // the test is over
		defer theirs.Close() //nolint:errcheck // the test is over
		conns[i] = ours
	}
	for _, conn := range conns[:2] {
		c.note(conn, http.StateNew)
		c.note(conn, http.StateActive)
	}
	if gone := c.note(conns[2], http.StateNew); gone != conns[2] {
		t.Error("one that is being answered goes")
	}
	c.note(conns[2], http.StateClosed)
	c.note(conns[1], http.StateIdle)
	if gone := c.note(conns[3], http.StateNew); gone != conns[1] {
		t.Error("one that is not quiet goes")
	}
	// Later notes do not add it again.
	c.note(conns[1], http.StateActive)
	c.note(conns[1], http.StateIdle)
	if len(c.conns) != 2 {
		t.Errorf("%d connections", len(c.conns))
	}
}
