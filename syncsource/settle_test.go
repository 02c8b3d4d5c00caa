package syncsource

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// A choice does not wait long for members that are down: one that refuses
// connections costs nothing, one that does not answer a second.
func TestWatcherSettles(t *testing.T) {
	t.Parallel()
	refuses := func(f *fakeSet, host string) {
		f.members[host].err = &mongo.LostError{Host: host, Err: errors.New("connection refused")}
	}
	silent := func(f *fakeSet, host string) { f.members[host].delay = time.Hour }
	tests := []struct {
		name  string
		hurt  func(f *fakeSet)
		seeds []string
		from  time.Duration
		to    time.Duration
	}{
		{"all are up", func(*fakeSet) {}, nil, 0, 20 * time.Millisecond},
		{"one refuses", func(f *fakeSet) { refuses(f, "c:1") }, nil, 0, 20 * time.Millisecond},
		{"the primary refuses", func(f *fakeSet) { refuses(f, "a:1") }, []string{"b:1"}, 0, 20 * time.Millisecond},
		{"two refuse", func(f *fakeSet) { refuses(f, "b:1"); refuses(f, "c:1") }, nil, 0, 20 * time.Millisecond},
		{"one is silent", func(f *fakeSet) { silent(f, "c:1") }, nil, settleTime, settleTime + 20*time.Millisecond},
		{"two are silent", func(f *fakeSet) { silent(f, "a:1"); silent(f, "c:1") }, []string{"a:1", "b:1"}, settleTime, settleTime + 20*time.Millisecond},
		{"one is slow", func(f *fakeSet) { f.members["c:1"].delay = 300 * time.Millisecond }, nil, 600 * time.Millisecond, 700 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeSet("a:1", "b:1", "c:1")
				tt.hurt(f)
				seeds := tt.seeds
				if seeds == nil {
					seeds = []string{"a:1"}
				}
				w := watchFake(t, f, WatcherConfig{Seeds: seeds})
				must.Succeed(t, w.Ready(t.Context()))
				if took := time.Since(f.start); took < tt.from || took > tt.to {
					t.Errorf("ready after %s, want %s to %s", took, tt.from, tt.to)
				}
				if v := w.View(); v.SetName != "rs0" {
					t.Errorf("ready, and the set is %q", v.SetName)
				}
			})
		})
	}
}

// While no member answers there is no choice.
func TestWatcherWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		for _, m := range f.members {
			m.err = &mongo.LostError{Err: errors.New("connection refused")}
		}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1", "b:1"}})
		pass(30 * time.Second)
		if v := w.View(); v.comparable() {
			t.Errorf("settled with %v", describe(v))
		}
		f.set(func() { f.members["b:1"].err = nil })
		must.Succeed(t, w.Ready(t.Context()))
		if took := time.Since(f.start) - 30*time.Second; took > 2*time.Second+20*time.Millisecond {
			t.Errorf("ready %s after one was back", took)
		}
	})
}
