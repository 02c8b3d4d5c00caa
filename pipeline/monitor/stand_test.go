package monitor

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// standing runs the loop of a link with an attempt for a test, and returns the announcements so
// far.
func standing(t *testing.T, m *Monitor, a Attempt) (announced func() string) {
	var mu sync.Mutex
	var text []string
	m.cfg.Waits = &mongo.Waits{}
	m.cfg.Observer = func(e event.Event) {
		mu.Lock()
		defer mu.Unlock()
		text = append(text, e.Message())
	}
	m.Began(a)
	ctx, stop := context.WithCancelCause(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.StandsLoop(ctx) })
	t.Cleanup(func() { stop(nil); running.Wait() })
	return func() string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(text, ", ")
	}
}

// taken returns a buffer with so many replies, of which the first is sent on.
func taken(t *testing.T, replies int) *buffer.Queue {
	q := must.Get(buffer.New(buffer.Config{}))(t)
	in, out := make(chan oplog.Reply), make(chan oplog.Reply)
	ctx, stop := context.WithCancelCause(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = q.Run(ctx, in, out) })
	t.Cleanup(func() { stop(nil); running.Wait() })
	for range replies {
		in <- oplog.Reply{Bytes: 100}
	}
	<-out
	return q
}

func says(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("announced: %q, want %q", got, want)
	}
}

// TestStands: whatever stage stands still, the log and the state say that nothing is applied,
// and the cause as far as it is known.
func TestStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := taken(t, 3)
		m := New(Config{})
		stats := func() applier.Stats { return applier.Stats{WindowBytes: 60, WaitsFor: "room in the lanes"} }
		announced := standing(t, m, Attempt{Queue: q, Counts: stats})
		time.Sleep(standsAfter - time.Second)
		says(t, announced(), "")
		time.Sleep(2 * time.Second)
		says(t, announced(), "nothing is applied")
		want := " UTC: 2 replies wait in the buffer, and 100 bytes are after it, 60 of them in the lanes; the applier waits for room in the lanes"
		if got := m.Snapshot().Reason; !strings.HasPrefix(got, "nothing has been applied since ") || !strings.HasSuffix(got, want) {
			t.Errorf("the state says %q", got)
		}
		time.Sleep(time.Minute)
		says(t, announced(), "nothing is applied")
		q.Release(100)
		time.Sleep(time.Second)
		says(t, announced(), "nothing is applied, operations are applied again")
		if got := m.Snapshot().Reason; got != "" {
			t.Errorf("the state says %q", got)
		}
		time.Sleep(standsAfter + time.Second) // there are two more
		says(t, announced(), "nothing is applied, operations are applied again, nothing is applied")
	})
}

// TestStandsOnDisk: that holds too where nothing is read from the spool.
func TestStandsOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must.Get(spool.Open(spool.Config{Dir: t.TempDir(), ID: "test", MinFree: 1}))(t)
		defer func() { must.Succeed(t, s.Close()) }()
		in := make(chan oplog.Reply, 1)
		doc := must.Marshal(t, bson.D{
			{Key: "ts", Value: bson.Timestamp{T: 1, I: 1}},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "op", Value: "n"},
			{Key: "ns", Value: ""},
			{Key: "o", Value: bson.D{}},
			{Key: "wall", Value: bson.DateTime(1)},
		})
		in <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(doc))(t)}, Bytes: int64(len(doc))}
		close(in)
		must.Succeed(t, s.Store(t.Context(), in))
		m := New(Config{})
		announced := standing(t, m, Attempt{Spool: s})
		time.Sleep(standsAfter + time.Second)
		says(t, announced(), "nothing is applied")
		if got := m.Snapshot().Reason; !strings.HasSuffix(got, "; more is on disk") {
			t.Errorf("the state says %q", got)
		}
	})
}

// ahead has the source's clock ahead of that of this process.
func ahead(m *Monitor, by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.source.HeardAt = time.Now()
	m.source.Metadata.CommittedWall = bson.NewDateTimeFromTime(time.Now().Add(by))
}

// TestStandsAfterDelay: entries that a delay has withheld, and does no more, are announced, whatever the source's clock says; without a
// delay it does not count.
func TestStandsAfterDelay(t *testing.T) {
	for _, c := range []struct{ delay, ahead, by time.Duration }{{time.Minute, -time.Hour, time.Minute}, {time.Minute, time.Minute, 2 * time.Minute}, {0, time.Hour, 0}} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Config{Delay: c.delay})
			announced := standing(t, m, Attempt{Queue: taken(t, 1)})
			ahead(m, c.ahead)
			time.Sleep(c.by + standsAfter - time.Second)
			says(t, announced(), "")
			time.Sleep(2 * time.Second)
			says(t, announced(), "nothing is applied")
		})
	}
}

// TestStandsOnPurpose: a link that has nothing to apply, or is not to apply it yet, says
// nothing; nor does one that applies operations, or whose attempts end.
func TestStandsOnPurpose(t *testing.T) {
	steps := func() int64 { return time.Now().Unix() / 5 } // while the bubble's clock runs
	for name, c := range map[string]struct {
		delay  time.Duration
		meddle func(m *Monitor)
		counts func() applier.Stats
	}{
		"idle":             {meddle: func(m *Monitor) { m.attempt.Queue.Release(100) }},
		"a delay":          {delay: time.Minute},
		"a clock ahead":    {delay: time.Second, meddle: func(m *Monitor) { ahead(m, 2*time.Minute) }},
		"between attempts": {meddle: (*Monitor).Between},
		"a slow target":    {counts: func() applier.Stats { return applier.Stats{Ops: steps()} }},
		"commands":         {counts: func() applier.Stats { return applier.Stats{Commands: steps()} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := New(Config{Delay: c.delay})
				announced := standing(t, m, Attempt{Queue: taken(t, 1), Counts: c.counts})
				if c.meddle != nil {
					c.meddle(m)
				}
				time.Sleep(time.Minute)
				says(t, announced(), "")
			})
		})
	}
}
