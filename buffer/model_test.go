package buffer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/oplog"
)

// inBubble hides a *testing.T, whose deadline does not apply in a bubble.
type inBubble struct{ *testing.T }

// model is the Queue as documented: slow and obvious.
type model struct {
	room     int64
	replies  int
	in       []int64 // sizes not taken yet
	pending  []int64 // taken, but without room: none or one
	queue    []int64
	buffered int64
	sent     int64 // sent and not released
}

// settle does everything that needs no other party.
func (m *model) settle() {
	for {
		switch {
		case len(m.pending) == 1 && (m.buffered == 0 || m.buffered+m.pending[0] <= m.room):
			m.buffered += m.pending[0]
			m.queue, m.pending = append(m.queue, m.pending[0]), nil
		case len(m.pending) == 0 && len(m.in) > 0 && len(m.queue) < m.replies && (m.buffered == 0 || m.buffered < m.room):
			m.pending, m.in = m.in[:1:1], m.in[1:]
		default:
			return
		}
	}
}

// TestModel: for every order of events the Queue behaves like the model, exceeds its
// limit only with a single reply, and delivers everything in order.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			cfg := Config{Limit: 64 * mib, headroom: 64*mib - 100, replies: rapid.IntRange(1, 5).Draw(rt, "replies")}
			sizes := rapid.SliceOfN(rapid.Int64Range(1, 150), 0, 30).Draw(rt, "sizes")
			m := &model{room: 100, replies: cfg.replies, in: sizes}
			q := start(ctx, t, cfg)
			fed := make(chan struct{})
			go func() {
				defer close(fed)
				defer close(q.in)
				for i, n := range sizes {
					select {
					case q.in <- oplog.Reply{Bytes: n, Entries: make([]oplog.Entry, i+1), Received: time.Now()}:
					case <-ctx.Done():
						return
					}
				}
			}()
			got := 0
			check := func() {
				synctest.Wait()
				m.settle()
				s := q.Stats()
				if s.Buffered != m.buffered || s.Replies != len(m.queue) || s.Buffered-s.Queued != m.sent {
					rt.Fatalf("the queue is %+v, the model %+v", s, *m)
				}
				if s.Buffered > 100 && (len(m.queue) > 1 || len(m.queue) == 1 && m.sent > 0) {
					rt.Fatalf("%d bytes are buffered, of more than one reply", s.Buffered)
				}
			}
			take := func() {
				want := 0
				if len(m.queue) > 0 {
					got++
					want = got
					m.sent += m.queue[0]
					m.queue = m.queue[1:]
				}
				if n := q.take(); n != want {
					rt.Fatalf("reply %d was sent, want %d", n, want)
				}
				check()
			}
			release := func(n int64) {
				m.buffered -= n
				m.sent -= n
				q.Release(n)
				check()
			}
			check()
			for range rapid.IntRange(0, 60).Draw(rt, "steps") {
				if rapid.Bool().Draw(rt, "take") {
					take()
				} else if m.sent > 0 {
					release(rapid.Int64Range(1, m.sent).Draw(rt, "release"))
				}
			}
			for got < len(sizes) {
				release(m.sent)
				take()
			}
			<-fed
			release(m.sent) // without room the end of in is not seen
			if err := <-q.done; err != nil {
				rt.Fatalf("Run: %v", err)
			}
			if _, open := <-q.out; open {
				rt.Fatal("out is open")
			}
			if s := q.Stats(); s.Buffered != 0 || !s.Oldest.IsZero() {
				rt.Fatalf("in the end: %+v", s)
			}
		})
	})
}
