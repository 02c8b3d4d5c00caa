package mongosim

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/fault"
)

var ping = bson.D{{Key: "ping", Value: 1}}

// broken reports whether an error is that of a connection that the other end broke.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// TestCutClient: connections break, new ones break at once, members are unharmed.
func TestCutClient(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 2})
	p := s.Primary()
	c := dial(t, p)
	c.run(ctx, "admin", ping)
	s.Cut(p.ID(), Client)
	if _, err := c.call(ctx, "admin", ping); !broken(err) {
		t.Errorf("a call over a cut link: %v, want a broken connection", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.Host())
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Read(make([]byte, 1))
	}
	if !broken(err) {
		t.Errorf("a new connection over a cut link: %v, want it broken", err)
	}
	term := view(t, p).Term
	dial(t, others(s, p)[0]).run(ctx, "admin", ping) // other members are reached
	s.Heal(p.ID(), Client)
	succeed(t, dial(t, p).insert(ctx, 1, majority))
	if now := view(t, p); !now.Writable || now.Term != term {
		t.Errorf("the primary of term %d is %s in term %d: clients do not matter to elections", term, now.State, now.Term)
	}
}

// TestBlackHoles: requests are not answered until the link is healed.
func TestBlackHoles(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Seed: 3})
	for _, text := range []string{"drop", "half-open in", "half-open out", "freeze"} {
		c := dial(t, s.Member(0))
		c.run(ctx, "admin", ping)
		f, err := fault.Parse(text)
		succeed(t, err)
		succeed(t, s.Fault(0, Client, f))
		answer := make(chan error, 1)
		go func() {
			_, err := c.call(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: text}}}}})
			answer <- err
		}()
		select {
		case err := <-answer:
			t.Errorf("%s: a call was answered: %v", text, err)
			continue
		case <-time.After(100 * time.Millisecond):
		}
		// Only what the member sends is lost on a link that is half open outwards.
		arrives := text == "half-open out"
		for arrives && len(dump(t, s.Member(0), "app", "c")) == 0 {
			succeed(t, ctx.Err())
		}
		if there := len(dump(t, s.Member(0), "app", "c")); !arrives && there > 0 {
			t.Errorf("%s: %d documents while the link is hurt", text, there)
		}
		s.Heal(0, Client)
		if err := <-answer; err != nil {
			t.Errorf("%s: the call after healing: %v", text, err)
		}
		dial(t, s.Member(0)).run(ctx, "app", bson.D{{Key: "drop", Value: "c"}})
	}
}

// dump returns the documents of a collection as they stand.
func dump(t *testing.T, m *Member, db, coll string) []bson.Raw {
	t.Helper()
	reply := must[bson.Raw](t)(m.Call(t.Context(), body(db, bson.D{{Key: "find", Value: coll}, nearest})))
	succeed(t, refusal(reply))
	return batch(t, reply, "firstBatch")
}

// TestResetMidMessage breaks connections off inside a reply, and inside a request.
func TestResetMidMessage(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Seed: 4})
	m := s.Member(0)
	big := strings.Repeat("x", 4000)
	dial(t, m).run(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: big}}}}})

	reset := func(d fault.Direction) *client {
		c := dial(t, m)
		c.run(ctx, "admin", ping)
		succeed(t, s.Fault(0, Client, fault.Fault{Kind: fault.Reset, Bytes: 1000, Direction: d}))
		return c
	}
	// A connection counts from its beginning: the pings are below 1000 bytes.
	c := reset(fault.Out)
	if reply, err := c.call(ctx, "app", bson.D{{Key: "find", Value: "c"}}); !broken(err) {
		t.Errorf("a reply of 4 KB: %d bytes, %v, want a broken connection", len(reply), err)
	}
	s.HealAll()
	c = reset(fault.In)
	_, err := c.call(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 2}, {Key: "x", Value: big}}}}})
	if !broken(err) {
		t.Errorf("a request of 4 KB: %v, want a broken connection", err)
	}
	s.HealAll()
	if docs := dump(t, m, "app", "c"); len(docs) != 1 {
		t.Errorf("%d documents: half a request was carried out", len(docs))
	}
	dial(t, m).run(ctx, "app", bson.D{{Key: "find", Value: "c"}})
}

// TestSlowLinks: latency is paid in both directions, a rate by the byte, and both
// end when they are healed.
func TestSlowLinks(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Seed: 5})
	c := dial(t, s.Member(0))
	c.run(ctx, "app", bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: make([]byte, 20_000)}}}},
	})
	took := func(cmd bson.D) time.Duration {
		start := time.Now()
		c.run(ctx, "app", cmd)
		return time.Since(start)
	}
	succeed(t, s.Fault(0, Client, fault.Fault{Kind: fault.Latency, Delay: 60 * time.Millisecond}))
	if d := took(ping); d < 120*time.Millisecond {
		t.Errorf("a round trip over 60 ms each way took %s", d)
	}
	succeed(t, s.Fault(0, Client, fault.Fault{Kind: fault.Rate, Bytes: 50_000, Direction: fault.Out}))
	if d := took(bson.D{{Key: "find", Value: "c"}}); d < 200*time.Millisecond {
		t.Errorf("20 KB at 50 KB/s took %s", d)
	}
	s.HealAll()
	if d := took(ping); d > 60*time.Millisecond {
		t.Errorf("a round trip over a healed link took %s", d)
	}
}

// TestFreeze: a frozen primary does not answer and is replaced. After the thaw
// the clients get their answers, and it follows the new one.
func TestFreeze(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 6})
	old := s.Primary()
	c := dial(t, old)
	succeed(t, c.insert(ctx, 1, majority))
	old.Freeze()
	answer := make(chan error, 1)
	go func() {
		_, err := c.call(ctx, "admin", ping)
		answer <- err
	}()
	_, err := s.AwaitNewPrimary(ctx, old)
	succeed(t, err)
	select {
	case err := <-answer:
		t.Errorf("a frozen member answered: %v", err)
	default:
	}
	// A client that connects is accepted and waits.
	late := dial(t, old)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := late.call(short, "admin", ping); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call to a frozen member: %v, want no answer", err)
	}
	succeed(t, dial(t, s.Primary()).insert(ctx, 2, majority))
	old.Thaw()
	succeed(t, <-answer)
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))
	if n := len(dump(t, old, "app", "c")); n != 2 {
		t.Errorf("the thawed member has %d documents, want 2", n)
	}
}
