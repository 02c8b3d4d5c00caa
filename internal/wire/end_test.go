package wire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/wire"
)

func TestHandlerClosesTheConnection(t *testing.T) {
	for _, noReply := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			conn, done := start(t.Context(), func(context.Context, *wire.Message) wire.Response {
				return wire.Response{Body: ping(), Close: true}
			})
			c := wire.NewClient(conn)
			send(t, c, wire.Request{Body: ping(), NoReply: noReply})
			if m, err := c.Receive(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, %v, want the end", m, err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMalformedMessageClosesAfterItsPredecessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		conn, done := start(t.Context(), func(ctx context.Context, req *wire.Message) wire.Response {
			<-release
			if ctx.Err() != nil {
				t.Error("the malformed message after it broke off a request")
			}
			return wire.Response{Body: req.Body}
		})
		c := wire.NewClient(conn)
		send(t, c, wire.Request{Body: ping()})
		if _, err := conn.Write(frame(2012, make([]byte, 9))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(release)
		receive(t, c)
		if _, err := c.Receive(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("after a malformed message: %v", err)
		}
		if _, ok := errors.AsType[*wire.ProtocolError](<-done); !ok {
			t.Error("Serve did not say so")
		}
	})
}

func TestWaitingHandlerLearnsOfTheHangup(t *testing.T) {
	for name, pipelined := range map[string]bool{"alone": false, "with a message ahead": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handled := 0
				conn, done := start(t.Context(), func(ctx context.Context, _ *wire.Message) wire.Response {
					handled++
					<-ctx.Done()
					if !errors.Is(context.Cause(ctx), wire.ErrHangup) {
						t.Errorf("cause is %v", context.Cause(ctx))
					}
					return wire.Response{Body: ping(), More: true}
				})
				c := wire.NewClient(conn)
				send(t, c, wire.Request{Body: ping(), Exhaust: true})
				if pipelined {
					send(t, c, wire.Request{Body: ping()})
				}
				synctest.Wait()
				_ = c.Close()
				if err := <-done; err == nil {
					t.Error("a reply that could not be sent was lost in silence")
				}
				if handled != 1 {
					t.Errorf("the handler was called %d times", handled)
				}
			})
		})
	}
}

// A driver with w:0 writes and closes at once.
func TestHangupSparesWhatWantsNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		handled := 0
		conn, done := start(t.Context(), func(ctx context.Context, _ *wire.Message) wire.Response {
			<-release
			if ctx.Err() != nil {
				t.Errorf("message %d was broken off: %v", handled, context.Cause(ctx))
			}
			handled++
			return wire.Response{}
		})
		c := wire.NewClient(conn)
		send(t, c, wire.Request{Body: ping(), NoReply: true})
		send(t, c, wire.Request{Body: ping(), NoReply: true})
		_ = c.Close()
		synctest.Wait()
		close(release)
		if err := <-done; err != nil || handled != 2 {
			t.Errorf("%d messages were handled, error %v", handled, err)
		}
	})
}

func TestHangupInsideAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), echo)
		if _, err := conn.Write(frame(2013, u32(0), body(ping()))[:20]); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if err := <-done; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error is %v", err)
		}
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	reason := errors.New("the member was stopped")
	for name, prepare := range map[string]func(t *testing.T, conn net.Conn){
		"idle": func(*testing.T, net.Conn) {},
		"inside a message": func(t *testing.T, conn net.Conn) {
			if _, err := conn.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		},
		"in a handler": func(t *testing.T, conn net.Conn) {
			send(t, wire.NewClient(conn), wire.Request{Body: doc(number("wait", 1))})
		},
		"with a message ahead": func(t *testing.T, conn net.Conn) {
			send(t, wire.NewClient(conn), wire.Request{Body: doc(number("wait", 1))})
			send(t, wire.NewClient(conn), wire.Request{Body: ping()})
		},
		"while the client does not read": func(t *testing.T, conn net.Conn) {
			send(t, wire.NewClient(conn), wire.Request{Body: ping()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				conn, done := start(ctx, func(ctx context.Context, req *wire.Message) wire.Response {
					if _, wait := rawbson.Lookup(req.Body, "wait"); wait {
						<-ctx.Done()
					}
					return wire.Response{Body: req.Body}
				})
				prepare(t, conn)
				synctest.Wait()
				cancel(reason)
				if err := <-done; !errors.Is(err, reason) {
					t.Errorf("error is %v", err)
				}
				if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("the connection is open: %v", err)
				}
			})
		})
	}
}

func TestReplyThatCannotBeSentIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), func(context.Context, *wire.Message) wire.Response { return wire.Response{} })
		send(t, wire.NewClient(conn), wire.Request{Body: ping()})
		if err := <-done; err == nil || !strings.Contains(err.Error(), "a body of 0 bytes") {
			t.Errorf("error is %v", err)
		}
	})
}

// A client that only stopped sending can still be written to; a stream to it
// would never end by itself.
func TestStreamEndsWithItsClient(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- wire.Serve(t.Context(), server, handlerFunc(func(ctx context.Context, req *wire.Message) wire.Response {
			<-ctx.Done()
			return wire.Response{Body: req.Body, More: true}
		}))
	}()
	send(t, wire.NewClient(conn), wire.Request{Body: ping(), Exhaust: true})
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	replies, err := io.ReadAll(conn)
	if one := must(t)(wire.AppendMessage(nil, &wire.Message{Body: ping()})); err != nil || len(replies) != len(one) {
		t.Errorf("%d bytes of replies, %v, want %d", len(replies), err, len(one))
	}
	hangUp(t, conn, done)
}
