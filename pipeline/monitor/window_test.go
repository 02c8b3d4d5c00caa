package monitor

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// TestWindowLeft: how long the source keeps the unread entries is estimated from how
// its oldest entry moves.
func TestWindowLeft(t *testing.T) {
	t.Parallel()
	at := func(seconds uint32) oplog.OpTime { return oplog.OpTime{TS: bson.Timestamp{T: seconds, I: 1}} }
	for _, tt := range []struct {
		name     string
		oldest   []uint32 // as of looks ten seconds apart
		position uint32
		want     time.Duration
	}{
		{"one look", []uint32{1000}, 5000, -1},
		{"one step", []uint32{1000, 1010}, 5000, -1},
		{"it does not move", []uint32{1000, 1000, 1000, 1000}, 5000, -1},
		{"as fast as time", []uint32{1000, 1010, 1020, 1030}, 1630, 600 * time.Second},
		{"ten times as fast", []uint32{1000, 1100, 1200, 1300}, 4300, 300 * time.Second},
		{"a night without writes", []uint32{1000, 1010, 1020, 30_000, 30_010}, 30_610, 600 * time.Second},
		{"now and then", []uint32{1000, 1000, 1040, 1040, 1080}, 1480, 300 * time.Second},
		{"passed", []uint32{1000}, 900, 0},
		{"all of it within a second", []uint32{1000}, 1000, -1},
		{"another member", []uint32{1000, 1100, 1200, 500}, 5000, -1},
	} {
		var w windowWatch
		var got Window
		began := time.Unix(1_700_000_000, 0)
		for i, oldest := range tt.oldest {
			got = w.look(began.Add(time.Duration(i)*windowEvery), at(oldest), at(tt.position))
		}
		if got.Left != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got.Left, tt.want)
		}
	}
}

// losing is a member whose oldest entry moves.
type losing struct {
	mu     sync.Mutex // guards the rest
	oldest uint32     // as of since
	since  time.Time
	pace   uint32 // seconds of it in each second
}

// at sets the oldest entry and its pace.
func (m *losing) at(oldest, pace uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.oldest, m.since, m.pace = oldest, time.Now(), pace
}

func (m *losing) Call(context.Context, mongo.Command) (bson.Raw, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldest := m.oldest + m.pace*uint32(time.Since(m.since)/time.Second)
	return bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{
		bson.D{{Key: "ts", Value: bson.Timestamp{T: oldest, I: 1}}, {Key: "t", Value: int64(1)}},
	}}}}})
}

// TestWindowShort: a source that is about to lose unread entries is warned of, once,
// and again if the window was longer in between.
func TestWindowShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []event.Event // guarded by mu
		m := New(Config{Waits: &mongo.Waits{}, Observer: func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, e)
		}})
		at := func(seconds uint32) oplog.OpTime { return oplog.OpTime{TS: bson.Timestamp{T: seconds, I: 1}} }
		reads := func(seconds uint32) { m.Moved(checkpoint.Progress{FetchFrom: at(seconds)}) }
		member := &losing{}
		m.source.Host, m.source.Caller = "db1:27017", member
		reads(100_000)
		member.at(1000, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		done := make(chan error, 1)
		go func() { done <- m.WindowLoop(ctx) }()
		after := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(told) != want {
				t.Fatalf("%d warnings, want %d: %v", len(told), want, told)
			}
		}
		after(5*time.Minute+time.Second, 0) // a day is left
		reads(1000 + 5*60 + 15*60)
		after(time.Second, 0) // it looks now and then only
		after(10*time.Second, 1)
		mu.Lock()
		first, shown := told[0], m.Snapshot().Window.Left
		mu.Unlock()
		if got, want := first.LogValue().String(), "[host=db1:27017 oldest=1310:1 position=2200:1 left=14m50s]"; got != want || first.Level() != slog.LevelWarn {
			t.Errorf("%s %s, want %s", first.Level(), got, want)
		}
		if left := event.Attr(first, keyLeft).Duration(); shown != left {
			t.Errorf("%s are shown, and %s told", shown, left)
		}
		after(5*time.Minute, 1)
		reads(100_000)
		after(time.Minute, 1)
		member.at(90_000, 100) // 100 s are left
		after(time.Minute, 2)
		cancel(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRunsShort: the oplog has to be spooled when the source is deleting entries and the
// link needs the older half, or the oldest tenth of an oplog that is not a new one.
func TestRunsShort(t *testing.T) {
	t.Parallel()
	at := func(seconds uint32) bson.Timestamp { return bson.Timestamp{T: seconds, I: 1} }
	for _, tt := range []struct {
		name                     string
		oldest, position, newest uint32
		rolls, want              bool
	}{
		{"the newest", 1000, 2000, 2000, true, false},
		{"the newer half", 1000, 1500, 2000, true, false},
		{"the older half", 1000, 1499, 2000, true, true},
		{"gone", 1000, 900, 2000, true, true},
		{"the older half, and nothing is deleted", 1000, 1499, 2000, false, false},
		{"the oldest tenth of a new one", 1000, 1000, 2000, false, false},
		{"the oldest tenth of an hour", 1000, 1359, 4600, false, true},
		{"more than a tenth of an hour", 1000, 1361, 4600, false, false},
		{"nothing is known of the newest", 1000, 1000, 0, true, false},
		{"the newest is of a member that lags", 1000, 2500, 2000, true, false},
	} {
		m := New(Config{Waits: &mongo.Waits{}})
		m.window = Window{Oldest: at(tt.oldest), Position: at(tt.position), Newest: at(tt.newest), At: time.Now(), Rolls: tt.rolls}
		if got := m.RunsShort(); (got != "") != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
		m.window.At = time.Now().Add(-time.Minute)
		if got := m.RunsShort(); got != "" {
			t.Errorf("%s, a minute ago: %q", tt.name, got)
		}
	}
}
