package wire_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/wire"
)

// A bubble ends only when every goroutine in it has: each of these tests shows
// also that Serve leaks none.

func TestServeAnswersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), echo)
		c := wire.NewClient(conn)
		for i := range int32(3) {
			want := doc(number("n", i))
			if got, err := c.Call(t.Context(), want); err != nil || !cmp.Equal(got, want) {
				t.Fatalf("got %v, %v, want %v", got, err, want)
			}
		}
		hangUp(t, c, done)
	})
}

// TestServeLarge: a large reply is the same message that a small one is.
func TestServeLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, size := range []int{1000, 64 << 10, 3 << 20} {
			body := doc(text("s", strings.Repeat("x", size)))
			for _, checksum := range []bool{false, true} {
				conn, done := start(t.Context(), func(context.Context, *wire.Message) wire.Response { return wire.Response{Body: body} })
				go func() { send(t, wire.NewClient(conn), wire.Request{Body: ping(), Checksum: checksum}) }()
				reply := &wire.Message{RequestID: 1, ResponseTo: 1, Body: body}
				if checksum {
					reply.Flags = wire.ChecksumPresent
				}
				want := must(t)(wire.AppendMessage(nil, reply))
				got := make([]byte, len(want))
				if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("a reply of %d bytes, checksum %t: it differs, %v", size, checksum, err)
				}
				hangUp(t, conn, done)
			}
		}
		conn, done := start(t.Context(), func(context.Context, *wire.Message) wire.Response {
			return wire.Response{Body: make(bson.Raw, wire.MaxDocumentSize+1)}
		})
		go func() { send(t, wire.NewClient(conn), wire.Request{Body: ping()}) }()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "a body of 16793601 bytes") {
			t.Errorf("a reply that is too large: %v", err)
		}
		_ = conn.Close()
	})
}

func TestServeAnswersPipelinedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), echo)
		c := wire.NewClient(conn)
		go func() {
			for i := range int32(10) {
				send(t, c, wire.Request{Body: doc(number("n", i))})
			}
		}()
		replies := wire.NewReader(conn)
		for i := range int32(10) {
			m, err := replies.ReadReply()
			if err != nil {
				t.Fatal(err)
			}
			want := &wire.Message{RequestID: i + 1, ResponseTo: i + 1, Body: doc(number("n", i))}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Error(diff)
			}
		}
		hangUp(t, conn, done)
	})
}

func TestReplyHasTheFormOfItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), func(_ context.Context, req *wire.Message) wire.Response {
			return wire.Response{Body: req.Body, More: true}
		})
		c := wire.NewClient(conn)
		for _, req := range []wire.Request{
			{Body: ping()},
			{Body: ping(), Checksum: true},
			{Body: ping(), LegacyDB: "admin"},
		} {
			id := send(t, c, req)
			m := receive(t, c)
			want := &wire.Message{RequestID: id, ResponseTo: id, Body: m.Body, Legacy: req.LegacyDB != ""}
			if req.Checksum {
				want.Flags = wire.ChecksumPresent
			}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Error(diff)
			}
		}
		hangUp(t, c, done)
	})
}

func TestSequencesReachTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := []wire.Sequence{{Name: "documents", Docs: []bson.Raw{ping(), doc()}}}
		conn, done := start(t.Context(), func(_ context.Context, req *wire.Message) wire.Response {
			if diff := cmp.Diff(want, req.Sequences); diff != "" {
				t.Error(diff)
			}
			return wire.Response{Body: req.Body}
		})
		c := wire.NewClient(conn)
		send(t, c, wire.Request{Body: ping(), Sequences: want})
		receive(t, c)
		hangUp(t, c, done)
	})
}

func TestNoReplyWhereNoneIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := 0
		conn, done := start(t.Context(), func(_ context.Context, req *wire.Message) wire.Response {
			handled++
			return wire.Response{Body: req.Body, More: true}
		})
		c := wire.NewClient(conn)
		send(t, c, wire.Request{Body: ping(), NoReply: true, Exhaust: true})
		id := send(t, c, wire.Request{Body: doc(number("last", 1))})
		if m := receive(t, c); m.ResponseTo != id || handled != 2 {
			t.Errorf("after %d messages the reply answers %d, want %d", handled, m.ResponseTo, id)
		}
		hangUp(t, c, done)
	})
}

func TestExhaustStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := int32(0)
		conn, done := start(t.Context(), func(_ context.Context, req *wire.Message) wire.Response {
			n++
			// The second request of the stream is the first again, the third is
			// the one that was named.
			switch want := map[int32]bson.Raw{1: ping(), 2: ping(), 3: doc(number("topologyVersion", 2)), 4: doc()}[n]; {
			case !cmp.Equal(req.Body, want):
				t.Errorf("request %d is %v, want %v", n, req.Body, want)
			case n == 2:
				return wire.Response{Body: doc(number("n", n)), More: true, Next: doc(number("topologyVersion", 2))}
			}
			req.Body = nil // it belongs to the handler
			return wire.Response{Body: doc(number("n", n)), More: n < 3}
		})
		c := wire.NewClient(conn)
		to := send(t, c, wire.Request{Body: ping(), Exhaust: true, Checksum: true})
		for i := range int32(3) {
			m := receive(t, c)
			want := &wire.Message{RequestID: m.RequestID, ResponseTo: to, Flags: wire.ChecksumPresent, Body: doc(number("n", i+1))}
			if i < 2 {
				want.Flags |= wire.MoreToCome
			}
			if diff := cmp.Diff(want, m); diff != "" {
				t.Error(diff)
			}
			to = m.RequestID
		}
		if _, err := c.Call(t.Context(), doc()); err != nil {
			t.Errorf("after the stream: %v", err)
		}
		hangUp(t, c, done)
	})
}

func TestCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, done := start(t.Context(), func(ctx context.Context, _ *wire.Message) wire.Response {
			<-ctx.Done()
			return wire.Response{Body: ping()}
		})
		c := wire.NewClient(conn)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Call(ctx, ping()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if _, err := c.Call(ctx, ping()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that has ended: %v", err)
		}
		_ = c.Close()
		if err := <-done; err == nil {
			t.Error("a reply that could not be sent was lost in silence")
		}
	})
}

func TestCallRefusesTheReplyOfAnother(t *testing.T) {
	for name, reply := range map[string]*wire.Message{
		"another number": {ResponseTo: 9, Body: ping()},
		"a stream":       {ResponseTo: 1, Flags: wire.MoreToCome, Body: ping()},
	} {
		near, far := net.Pipe()
		go func() {
			if _, err := wire.NewReader(far).ReadMessage(); err == nil {
				_, _ = far.Write(must(t)(wire.AppendMessage(nil, reply)))
			}
		}()
		c := wire.NewClient(near)
		if got, err := c.Call(t.Context(), ping()); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
		_ = c.Close()
	}
}

func TestServeOverTCP(t *testing.T) {
	before := runtime.NumGoroutine()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			err = wire.Serve(context.Background(), conn, handlerFunc(echo))
		}
		done <- err
	}()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(conn)
	want := doc(text("s", strings.Repeat("x", 5<<20)))
	for range 2 {
		got, err := c.Call(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Error("5 MiB came back as something else")
		}
	}
	_ = c.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	_ = ln.Close()
	// The goroutine that sent on done may still be on its way out.
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
