package fetcher

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// TestBehind: a member that does not know of what others have committed is behind by that, but by no more than the time since
// it was not; by less than ten seconds is none.
func TestBehind(t *testing.T) {
	t.Parallel()
	_, watcher, stop := watched(t, mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 4}), func(v syncsource.View) bool {
		return len(v.Members) > 0 && v.Members[0].Up() && !v.Members[0].Committed.IsNull()
	})
	stop() // what it has seen stays
	committed := watcher.View().Members[0].Committed
	f := must.Get(New(Config{From: committed, Watcher: watcher}))(t)
	now := time.Now()
	look := func(what string, seconds int, passed, want time.Duration) {
		t.Helper()
		m := Metadata{Committed: oplog.NewOpTime(uint32(int(committed.TS.T)-seconds), 1, committed.Term)}
		if seconds == 0 {
			m.Committed.TS = committed.TS
		}
		if got := f.behind(&m, now.Add(passed)); got != want {
			t.Errorf("%s: it is behind by %s, want %s", what, got, want)
		}
	}
	look("at first", 3600, 0, time.Hour)
	look("hardly", 9, 0, 0)
	look("level", 0, time.Second, 0)
	look("just now it was", 3600, 6*time.Second, 0)
	look("since then", 3600, 21*time.Second, 20*time.Second)
	look("less", 15, time.Minute, 15*time.Second)
	look("ahead", -5, time.Hour, 0)
	look("level until then", 3600, time.Hour+time.Second, 0)
}

// TestSourceState: a member is judged by what it says, and by how long it is behind others.
func TestSourceState(t *testing.T) {
	t.Parallel()
	m := Metadata{IsPrimary: true, HasSource: true, Applied: oplog.NewOpTime(9, 1, 2), Committed: oplog.NewOpTime(5, 1, 2), Behind: time.Minute}
	want := syncsource.SourceState{Primary: true, HasSource: true, Applied: m.Applied, Behind: time.Minute}
	if got := m.sourceState(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
