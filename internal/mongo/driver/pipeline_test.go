package driver_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	xdriver "go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// numbered returns commands {do: i} with a document each.
func numbered(t testing.TB, n, size int) []mongo.Command {
	t.Helper()
	cmds := make([]mongo.Command, n)
	for i := range cmds {
		cmds[i] = command(t, "do", i)
		cmds[i].Sequence = "documents"
		cmds[i].Docs = []bson.Raw{drivertest.Doc(t, bson.D{{Key: "b", Value: make([]byte, size)}})}
	}
	return cmds
}

func number(body bson.Raw) int32 { return body.Lookup("do").Int32() }

// echo answers {do: i} with {done: i}, or with the reply of refuse.
func echo(t *testing.T, pad int, refuse func(i int32) bson.Raw) func(received) (bson.Raw, []byte) {
	return func(m received) (bson.Raw, []byte) {
		i, ok := m.body.Lookup("do").Int32OK()
		if ok && refuse != nil {
			if doc := refuse(i); doc != nil {
				return doc, nil
			}
		}
		return drivertest.Doc(t, bson.D{{Key: "done", Value: i}, {Key: "pad", Value: make([]byte, pad)}, {Key: "ok", Value: 1}}), nil
	}
}

// eachWay runs a test with commands that are sent below the driver, and by it, as with TLS.
func eachWay(t *testing.T, test func(t *testing.T, open opener)) {
	t.Parallel()
	for name, through := range map[string]bool{"below": false, "through": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(t testing.TB, c driver.Config) *driver.Set {
				s := open(t, c)
				if through {
					s.ThroughDriver()
				}
				return s
			})
		})
	}
}

type opener func(t testing.TB, c driver.Config) *driver.Set

// TestCallAll: commands arrive in order on one connection, each reply is that of its
// command, and neither side ever waits for the other, however many there are.
func TestCallAll(t *testing.T) { eachWay(t, testCallAll) }

func testCallAll(t *testing.T, open opener) {
	for name, tc := range map[string]struct{ n, size, pad int }{
		"none": {0, 0, 0}, "one": {1, 10, 0}, "two": {2, 10, 0}, "a round": {64, 10, 0}, "and one": {65, 10, 0},
		"many": {1000, 100, 200}, "large": {40, 1 << 20, 200}, "one after the other": {5, 5 << 20, 0},
		// More than sockets buffer, unless the other side reads.
		"large replies": {400, 30_000, 4000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.answer = echo(t, tc.pad, nil)
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			next := 0
			err := s.CallAll(within(t), numbered(t, tc.n, tc.size), func(i int, reply bson.Raw) error {
				if i != next || int(reply.Lookup("done").Int32()) != i {
					t.Errorf("reply %d is %s, want %d", i, reply, next)
				}
				next++
				return nil
			})
			if err != nil || next != tc.n {
				t.Fatalf("%d replies, %v", next, err)
			}
			for i, m := range f.got {
				if number(m.body) != int32(i) || m.conn != f.got[0].conn || len(m.sections["documents"]) != 1 {
					t.Fatalf("command %d arrived as %s on another connection, or without its document", i, m.body)
				}
			}
			must(t, s, "do", 5)
		})
	}
}

// narrow is a listener whose connections have small buffers.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		err = errors.Join(tcp.SetReadBuffer(256<<10), tcp.SetWriteBuffer(256<<10))
	}
	return c, err
}

// TestCallAllStuck: a server that has to write a reply before it reads the next command,
// with replies as long as those to upserts can be.
func TestCallAllStuck(t *testing.T) { eachWay(t, testCallAllStuck) }

func testCallAllStuck(t *testing.T, open opener) {
	f := newFake(t)
	f.listener = narrow{f.listener}
	f.answer = echo(t, 300_000, nil)
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	next := 0
	err := s.CallAll(within(t), numbered(t, 40, 250_000), func(i int, reply bson.Raw) error {
		if i != next || int(reply.Lookup("done").Int32()) != i {
			t.Errorf("reply %d is that of %d, want %d", i, reply.Lookup("done").Int32(), next)
		}
		next++
		return nil
	})
	if err != nil || next != 40 {
		t.Fatalf("%d replies, %v", next, err)
	}
}

// TestCallAllEnds: CallAll ends at the first command that fails, or for whose reply each
// returns an error, and the connection stays usable.
func TestCallAllEnds(t *testing.T) { eachWay(t, testCallAllEnds) }

func testCallAllEnds(t *testing.T, open opener) {
	unhappy := errors.New("unhappy")
	for _, n := range []int{2, 64, 65, 200} {
		for _, at := range []int{0, n / 2, n - 1} {
			f := newFake(t)
			f.answer = echo(t, 0, func(i int32) bson.Raw {
				if int(i) >= at && i != 1000 {
					return drivertest.Doc(t, bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 112 + int(i) - at}, {Key: "errmsg", Value: "no"}, {Key: "errInfo", Value: bson.D{{Key: "do", Value: i}}}})
				}
				return nil
			})
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			asked := 0
			each := func(i int, _ bson.Raw) error { //nolint:unparam // As CallAll wants it.
				asked++
				if i != asked-1 {
					t.Errorf("reply %d has turn %d", i, asked-1)
				}
				return nil
			}
			err := s.CallAll(within(t), numbered(t, n, 10), each)
			if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.WriteConflict || asked != at {
				t.Errorf("%d commands, %d refused: %v after %d replies", n, at, err, asked)
			} else if number(e.Info) != int32(at) {
				t.Errorf("%d commands, %d refused: the error is about %s", n, at, e.Info)
			}
			if reply := must(t, s, "do", 1000); reply.Lookup("done").Int32() != 1000 {
				t.Errorf("the next call got %s", reply)
			}

			f.say(echo(t, 0, nil))
			asked = 0
			err = s.CallAll(within(t), numbered(t, n, 10), func(i int, reply bson.Raw) error {
				if err := each(i, reply); err != nil || i != at {
					return err
				}
				return unhappy
			})
			if !errors.Is(err, unhappy) || asked != at+1 {
				t.Errorf("%d commands, %d not liked: %v after %d replies", n, at, err, asked)
			}
			if reply := must(t, s, "do", 1000); reply.Lookup("done").Int32() != 1000 {
				t.Errorf("the next call got %s", reply)
			}
			f.mu.Lock()
			for _, m := range f.got {
				if m.conn != f.got[0].conn {
					t.Error("the connection was not kept")
				}
			}
			f.mu.Unlock()
			f.stop()
		}
	}
}

// TestCallAllLost: a connection that ends, an invalid reply, a context that ends, and a
// command that cannot be sent.
func TestCallAllLost(t *testing.T) { eachWay(t, testCallAllLost) }

func testCallAllLost(t *testing.T, open opener) {
	stop := errors.New("stop")
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, f *fake, cancel context.CancelCauseFunc, m received) (bson.Raw, []byte)
		ok   func(err error) bool
	}{
		{"the connection ends", func(*testing.T, *fake, context.CancelCauseFunc, received) (bson.Raw, []byte) { return nil, nil }, wasLost},
		{"the reply is for another", func(t *testing.T, f *fake, _ context.CancelCauseFunc, m received) (bson.Raw, []byte) {
			return nil, f.message(m.id+1, drivertest.Doc(t, bson.D{{Key: "ok", Value: 1}}), false)
		}, wasLost},
		{"the context ends", func(_ *testing.T, _ *fake, cancel context.CancelCauseFunc, m received) (bson.Raw, []byte) {
			cancel(stop)
			_, _ = m.conn.Read(make([]byte, 1<<20)) // blocks until it is closed
			return nil, nil
		}, func(err error) bool { return errors.Is(err, stop) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(within(t))
			defer cancel(nil)
			f := newFake(t)
			f.answer = func(m received) (bson.Raw, []byte) {
				if i, ok := m.body.Lookup("do").Int32OK(); ok && i == 3 {
					return tc.do(t, f, cancel, m)
				}
				return echo(t, 0, nil)(m)
			}
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			asked := 0
			err := s.CallAll(ctx, numbered(t, 10, 10), func(int, bson.Raw) error { asked++; return nil })
			// A context may end before the replies that have come are read.
			if early := errors.Is(err, stop) && asked < 3; !tc.ok(err) || asked != 3 && !early {
				t.Errorf("%v after %d replies", err, asked)
			}
			f.say(echo(t, 0, nil))
			if reply := must(t, s, "do", 1000); reply.Lookup("done").Int32() != 1000 {
				t.Errorf("the next call got %s", reply)
			}
		})
	}
	f := newFake(t)
	f.answer = echo(t, 0, nil)
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	cmds := numbered(t, 70, 10)
	cmds[66].DB = ""
	if err := s.CallAll(within(t), cmds, func(int, bson.Raw) error { return nil }); err == nil || wasLost(err) {
		t.Errorf("a command without a database: %v", err)
	}
	must(t, s, "do", 1000)
}

// A context that ends with the last reply: all replies are returned, and the connection is
// either kept or not used again.
func TestCallAllEndsWithContext(t *testing.T) { eachWay(t, testCallAllEndsWithContext) }

func testCallAllEndsWithContext(t *testing.T, open opener) {
	f := newFake(t)
	f.answer = echo(t, 0, nil)
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	must(t, s, "do", 1000)
	for range 20 {
		ctx, cancel := context.WithCancelCause(within(t))
		err := s.CallAll(ctx, numbered(t, 3, 10), func(i int, _ bson.Raw) error {
			if i == 2 {
				cancel(errors.New("stop"))
			}
			return nil
		})
		if err != nil {
			t.Fatalf("every command was answered, but: %v", err)
		}
		must(t, s, "do", 1000)
	}
}

// TestCallAllRefusedAtEnd: a login has expired, and the context ends before the next one.
func TestCallAllRefusedAtEnd(t *testing.T) { eachWay(t, testCallAllRefusedAtEnd) }

func testCallAllRefusedAtEnd(t *testing.T, open opener) {
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	f := newFake(t)
	expired := drivertest.Doc(t, bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 391}, {Key: "errmsg", Value: "expired"}})
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	must(t, s, "do", 1000)
	replies := []byte{}
	f.say(func(m received) (bson.Raw, []byte) {
		reply := expired
		if number(m.body) == 0 {
			reply, _ = echo(t, 0, nil)(m)
		}
		// All replies arrive at once, so that they are there when the context ends.
		if replies = append(replies, f.message(m.id, reply, false)...); number(m.body) < 2 {
			return nil, []byte{}
		}
		return nil, replies
	})
	var times atomic.Int32
	s.SetLogin(relogin{&times})
	err := s.CallAll(ctx, numbered(t, 3, 10), func(i int, _ bson.Raw) error {
		if i == 0 {
			cancel(stop)
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Errorf("the context has ended, but: %v", err)
	}
}

// TestCallAllUnusualReplies: replies that come in pieces, with a checksum, with flags that
// allow more, or as long as a message may be.
func TestCallAllUnusualReplies(t *testing.T) { eachWay(t, testCallAllUnusualReplies) }

func testCallAllUnusualReplies(t *testing.T, open opener) {
	const flags = 16
	for name, change := range map[string]func(m received, wm []byte) []byte{
		"in pieces": func(m received, wm []byte) []byte {
			for len(wm) > 3 {
				_, _ = m.conn.Write(wm[:3])
				wm = wm[3:]
			}
			return wm
		},
		"checksum": func(_ received, wm []byte) []byte {
			wm[flags] |= byte(wiremessage.ChecksumPresent)
			wm = append(wm, 1, 2, 3, 4)
			binary.LittleEndian.PutUint32(wm, uint32(len(wm)))
			return wm
		},
		"exhaustAllowed": func(_ received, wm []byte) []byte {
			wm[flags+2] |= byte(wiremessage.ExhaustAllowed >> 16)
			return wm
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.answer = func(m received) (bson.Raw, []byte) {
				reply, _ := echo(t, 0, nil)(m)
				return nil, change(m, f.message(m.id, reply, false))
			}
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			next := int32(0)
			err := s.CallAll(within(t), numbered(t, 100, 10), func(_ int, reply bson.Raw) error {
				if reply.Lookup("done").Int32() != next {
					t.Errorf("reply %d is %s", next, reply)
				}
				next++
				return nil
			})
			if err != nil || next != 100 {
				t.Errorf("%v after %d replies", err, next)
			}
		})
	}
}

// TestFaults: a fault is one of the server's, for its monitor, unless the context has ended.
func TestFaults(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for _, want := range []error{net.ErrClosed, context.Canceled} {
		err := driver.Fault(ctx, net.ErrClosed)
		if _, ok := errors.AsType[topology.ConnectionError](err); !ok || !errors.Is(err, want) {
			t.Errorf("the monitor is given %v, want %v", err, want)
		}
		cancel(nil)
	}
}

func wasLost(err error) bool {
	_, lost := errors.AsType[*mongo.LostError](err)
	return lost
}

func TestCallAllCompressed(t *testing.T) { eachWay(t, testCallAllCompressed) }

func testCallAllCompressed(t *testing.T, open opener) {
	f := newFake(t)
	f.compressor = wiremessage.CompressorSnappy
	f.hello = bson.D{{Key: "compression", Value: bson.A{"snappy"}}}
	f.answer = echo(t, 100, nil)
	f.start()
	s := open(t, driver.Config{URI: f.uri() + "?compressors=snappy"})
	var got []int32
	if err := s.CallAll(within(t), numbered(t, 40, 1000), func(_ int, reply bson.Raw) error {
		got = append(got, reply.Lookup("done").Int32())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 40 || !slices.IsSorted(got) || !f.last().compressed || !bytes.Equal(f.last().sections["documents"][0], numbered(t, 1, 1000)[0].Docs[0]) {
		t.Errorf("replies %v, compressed: %v", got, f.last().compressed)
	}
}

// relogin is an authentication that has to be renewed.
type relogin struct{ times *atomic.Int32 }

func (relogin) Auth(context.Context, *xdriver.AuthConfig) error { return nil }

func (r relogin) Reauth(context.Context, *xdriver.AuthConfig) error {
	r.times.Add(1)
	return nil
}

// TestCallAllReauthenticates: the commands that were rejected since the authentication
// expired are sent again, and no others.
func TestCallAllReauthenticates(t *testing.T) { eachWay(t, testCallAllReauthenticates) }

func testCallAllReauthenticates(t *testing.T, open opener) {
	for _, at := range []int32{0, 7, 39} {
		f := newFake(t)
		var times atomic.Int32
		f.answer = echo(t, 0, func(i int32) bson.Raw {
			if i >= at && times.Load() == 0 {
				return drivertest.Doc(t, bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 391}, {Key: "errmsg", Value: "expired"}})
			}
			return nil
		})
		f.start()
		s := open(t, driver.Config{URI: f.uri()})
		must(t, s, "ping", 1)
		s.SetLogin(relogin{&times})
		var got []int32
		if err := s.CallAll(within(t), numbered(t, 40, 10), func(_ int, reply bson.Raw) error {
			got = append(got, reply.Lookup("done").Int32())
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(got) != 40 || !slices.IsSorted(got) || times.Load() != 1 {
			t.Errorf("from %d on: replies %v after %d logins", at, got, times.Load())
		}
	}
}

// TestCallAllHalfRefused: if a command after one that was rejected for its authentication
// was executed, no command is sent twice.
func TestCallAllHalfRefused(t *testing.T) { eachWay(t, testCallAllHalfRefused) }

func testCallAllHalfRefused(t *testing.T, open opener) {
	f := newFake(t)
	f.answer = echo(t, 0, func(i int32) bson.Raw {
		if i >= 3 && i != 5 {
			return drivertest.Doc(t, bson.D{{Key: "ok", Value: 0}, {Key: "code", Value: 391}, {Key: "errmsg", Value: "expired"}})
		}
		return nil
	})
	f.start()
	s := open(t, driver.Config{URI: f.uri()})
	must(t, s, "ping", 1)
	before := f.sent()
	var times atomic.Int32
	s.SetLogin(relogin{&times})
	asked := 0
	err := s.CallAll(within(t), numbered(t, 10, 10), func(int, bson.Raw) error { asked++; return nil })
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != 391 || asked != 3 || times.Load() != 0 || f.sent()-before != 10 {
		t.Errorf("%v after %d replies, %d logins, %d commands", err, asked, times.Load(), f.sent()-before)
	}
	if reply := must(t, s, "do", 0); reply.Lookup("done").Int32() != 0 {
		t.Errorf("the next call got %s", reply)
	}
}
