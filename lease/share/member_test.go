package share

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
)

// slow is a board whose first beat is answered late, with what it had before.
type slow struct {
	Board
	beats int
}

// Beat implements Board.
func (s *slow) Beat(_ context.Context, _ string, m Member, _ time.Duration) (Member, error) {
	if s.beats++; s.beats == 1 {
		time.Sleep(time.Second)
		m.Process = "another one"
	}
	return m, nil
}

// TestLateAnswer: the answer to a beat does not count after that to a later one.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(New(Config{
			Store: struct{ locks.Store }{}, Board: &slow{}, Group: "g", Member: "m",
			Partitions: func(context.Context) ([]string, error) { return nil, nil }, Work: func(context.Context, string, int64) error { return nil },
		}))(t)
		late := make(chan bool)
		go func() { late <- s.beat(t.Context()) }()
		synctest.Wait()
		if !s.beat(t.Context()) || !<-late {
			t.Error("a beat was not answered")
		}
		if !s.joined || s.waits {
			t.Error("the member has not its name, by an answer of before")
		}
	})
}

// TestWatchAfterBreak: after a break, as after a suspension, a member must be seen silent for a whole TTL before it is dead: it may have been
// suspended as well.
func TestWatchAfterBreak(t *testing.T) {
	const every, ttl = 2 * time.Second, 10 * time.Second
	began := time.Unix(1000, 0)
	w := newWatch(every, ttl, false)
	member := []Member{{Name: "m", Process: "p", Beat: began}}
	dead := func(at time.Duration) bool {
		now := began.Add(at)
		_, is := w.look(member, now, now, now)["m"]
		return is
	}
	for at := time.Duration(0); at <= every; at += every {
		if dead(at) {
			t.Errorf("dead after %s", at)
		}
	}
	const resumed = time.Minute
	for at := resumed; at < resumed+ttl-every; at += every {
		if dead(at) {
			t.Errorf("dead %s after the break", at-resumed)
		}
	}
	for at := resumed + ttl - every; at < resumed+ttl; at += every {
		_ = dead(at)
	}
	if !dead(resumed + ttl) {
		t.Error("alive a TTL after the break")
	}
}
