package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// TestAttentive: for a while after a request it is looked for the next one more often.
func TestAttentive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		c := New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }})
		ctx, stop := context.WithCancelCause(context.Background())
		c.Begin()
		c.Leads(term(1))
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		// looks is how often it looks within a time.
		looks := func(within time.Duration) (n int) {
			d.set(func() { n = -d.looks })
			pass(within)
			d.set(func() { n += d.looks })
			return n
		}
		if n := looks(9*lookEvery + lookEvery/2); n != 10 {
			t.Errorf("%d looks in 9.5 s, want 10", n)
		}
		d.ask(request.LogLevel, `{"level": "debug"}`)
		pass(listEvery)
		if d.states() != "done" {
			t.Fatal(d.states())
		}
		if n, want := looks(10*lookEvery), int(10*lookEvery/lookSoon); n != want {
			t.Errorf("after a request: %d looks in 10 s, want %d", n, want)
		}
		pass(attentive)
		if n := looks(10 * lookEvery); n != 10 {
			t.Errorf("later: %d looks in 10 s, want 10", n)
		}
		d.set(func() { d.mute = errors.New("planted") }) // so that it stays as it is, and is tried at each look
		d.ask(request.LogLevel, `{"level": "info"}`)
		pass(listEvery + attentive + lookEvery)
		if n := looks(10 * lookEvery); n != 10 || d.states() != "done asked" {
			t.Errorf("a request that stays asked, for longer: %d looks in 10 s, want 10; %s", n, d.states())
		}
		stop(nil)
		<-done
	})
}
