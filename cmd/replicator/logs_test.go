package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// An idle link is silent but for a line every five minutes; a busy one has a line
// every ten seconds.
func TestProgressLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logLines
		out.more = sync.NewCond(&out.mu)
		var mu sync.Mutex
		now := monitor.Snapshot{State: monitor.Steady, SourceHost: "a:1"}
		change := func(f func(*monitor.Snapshot)) { mu.Lock(); f(&now); mu.Unlock() }
		ctx, end := context.WithCancelCause(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() {
			progressLoop(ctx, newLogger(&out, true, "info"), func() monitor.Snapshot { mu.Lock(); defer mu.Unlock(); return now })
		})
		lines := func() int { synctest.Wait(); return strings.Count(out.String(), "\n") }
		time.Sleep(4*time.Minute + time.Second)
		if n := lines(); n != 0 {
			t.Errorf("%d lines of an idle link", n)
		}
		time.Sleep(time.Minute)
		if n := lines(); n != 1 {
			t.Errorf("%d lines after five idle minutes", n)
		}
		change(func(s *monitor.Snapshot) {
			s.Progress = checkpoint.Progress{Applied: oplog.OpTime{TS: bson.Timestamp{T: 5, I: 1}, Term: 2}, Ops: 2500}
			s.Lag = 1234 * time.Millisecond
		})
		time.Sleep(10 * time.Second)
		if n := lines(); n != 2 || !strings.Contains(out.String(), `"msg":"progress","state":"steady","lag":"1.234s","applied":"5:1 t2"`) ||
			!strings.Contains(out.String(), `"ops":2500,"opsPerSecond":250`) {
			t.Errorf("%d lines: %s", n, &out)
		}
		time.Sleep(10 * time.Second)
		change(func(s *monitor.Snapshot) { s.State, s.Progress = monitor.Standby, checkpoint.Progress{} })
		time.Sleep(10 * time.Second)
		if n := lines(); n != 3 || strings.Contains(out.String(), `"ops":-`) {
			t.Errorf("%d lines: %s", n, &out)
		}
		end(nil)
		loop.Wait()
	})
}

type happened struct{ level slog.Level }

func (happened) Message() string     { return "it happened" }
func (h happened) Level() slog.Level { return h.level }
func (happened) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, "l"), slog.Int(keyOps, 3))
}

func TestEventsAreLogged(t *testing.T) {
	for level, want := range map[string]int{"debug": 3, "info": 2, "warn": 1, "error": 0} {
		var out bytes.Buffer
		seen := 0
		tell := observers(nil, logEvents(t.Context(), newLogger(&out, true, level).With(slog.String(keyLink, "l"))), func(event.Event) { seen++ })
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
			tell(happened{l})
		}
		if n := strings.Count(out.String(), "\n"); n != want || seen != 3 {
			t.Errorf("%s: %d lines, %d seen", level, n, seen)
		}
		if want > 0 && !strings.Contains(out.String(), `"msg":"it happened","link":"l","ops":3}`) {
			t.Errorf("got %s", &out)
		}
	}
}

func TestLogFormat(t *testing.T) {
	file := must.Get(os.Create(t.TempDir() + "/log"))(t)
	defer file.Close() //nolint:errcheck // nothing was written
	if !jsonLogs("auto", file) || !jsonLogs("auto", &bytes.Buffer{}) || jsonLogs("text", file) || !jsonLogs("json", file) {
		t.Error("auto is text on a terminal, and JSON elsewhere")
	}
}

// TestLogLevel: a request changes the level of a link's log, and takes it back to that of the
// start; also that of a link among others.
func TestLogLevel(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	base := newLogger(&out, false, "warn")
	level := newLogLevel("warn")
	log := level.of(base).With(slog.String(keyLink, "l")).WithGroup("g")
	for _, step := range []struct{ level, want string }{{"", "we"}, {"debug", "diwe"}, {"error", "e"}, {"info", "iwe"}, {"", "we"}} {
		out.Reset()
		level.change(step.level)
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e")
		var got strings.Builder
		for line := range strings.Lines(out.String()) {
			_, msg, _ := strings.Cut(line, "msg=")
			got.WriteString(msg[:1])
		}
		if got.String() != step.want || !strings.Contains(out.String(), "link=l") {
			t.Errorf("level %q: %q, want %q: %s", step.level, got.String(), step.want, out.String())
		}
	}
	if base.Enabled(t.Context(), slog.LevelInfo) {
		t.Error("the log of the others has changed")
	}
}
