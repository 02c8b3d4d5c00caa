package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Log keys of this package. Events bring their own.
const (
	keyLink       = "link"
	keyVersion    = "version"
	keySource     = "source"
	keyTarget     = "target"
	keyScope      = "scope"
	keyMemory     = "memory"
	keyMemoryFrom = "memoryFrom"
	keyListen     = "listen"
	keyState      = "state"
	keyLag        = "lag"
	keyApplied    = "applied"
	keyDurable    = "durable"
	keyRate       = "opsPerSecond"
	keyOps        = "ops"
	keyBuffer     = "bufferBytes"
	keyHost       = "host"
	keyError      = "error"
	keyHint       = "hint"
	keyCode       = "exitCode"
	keyCheck      = "check"
	keyDetail     = "detail"
	keyLevel      = "result"
	keyDo         = "do"
	keyTimeout    = "timeout"
	keyMember     = "member"
)

// jsonLogs reports whether logs are JSON. auto means: not on a terminal.
func jsonLogs(format string, w io.Writer) bool {
	switch format {
	case "json":
		return true
	case "text":
		return false
	}
	file, ok := w.(*os.File)
	return !ok || !term.IsTerminal(int(file.Fd()))
}

// newLogger makes the log of a run.
func newLogger(w io.Writer, asJSON bool, level string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: levelOf(level)}
	if asJSON {
		opts.ReplaceAttr = readable
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// readable writes durations in JSON as in text, "1m30s", not as nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// logEvents returns an observer that logs. The text of a line is the event's.
func logEvents(ctx context.Context, log *slog.Logger) event.Observer {
	h := log.Handler()
	return func(e event.Event) {
		if !h.Enabled(ctx, e.Level()) {
			return
		}
		r := slog.NewRecord(time.Now(), e.Level(), e.Message(), 0)
		if v := e.LogValue().Resolve(); v.Kind() == slog.KindGroup {
			for _, a := range v.Group() {
				if a.Key != keyLink { // every line has it
					r.AddAttrs(a)
				}
			}
		}
		// An error of writing a line cannot be reported.
		_ = h.Handle(ctx, r)
	}
}

// observers combines several observers. Each may be nil.
func observers(all ...event.Observer) event.Observer {
	return func(e event.Event) {
		for _, o := range all {
			o.Tell(e)
		}
	}
}

const (
	progressEvery = 10 * time.Second
	// quietFor is the number of rounds after which an idle link logs its
	// progress all the same.
	quietFor = 30
)

// progressLoop logs the link's position every 10 s, if anything has changed. An
// idle link, whose source writes a no-op entry every 10 s, has a line every five
// minutes.
func progressLoop(ctx context.Context, log *slog.Logger, snapshot func() monitor.Snapshot) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	last, at, quiet := snapshot(), time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s, now := snapshot(), time.Now()
		if copyUnderWay(&s) { // which is shown separately
			last, at, quiet = s, now, 0
			continue
		}
		ops := s.Progress.Ops - last.Progress.Ops
		if ops < 0 { // it is counted from zero again once the process stands by
			ops = s.Progress.Ops
		}
		if ops == 0 && s.State == last.State && s.Lag.Round(time.Second) == last.Lag.Round(time.Second) {
			if quiet++; quiet < quietFor {
				last, at = s, now
				continue
			}
		}
		quiet = 0
		log.LogAttrs(ctx, slog.LevelInfo, "progress",
			slog.String(keyState, string(s.State)),
			slog.Duration(keyLag, s.Lag.Round(time.Millisecond)),
			slog.String(keyApplied, s.Progress.Applied.String()),
			slog.String(keyDurable, s.Progress.Durable.String()),
			slog.Int64(keyOps, ops),
			slog.Int64(keyRate, int64(float64(ops)/max(now.Sub(at), time.Millisecond).Seconds())),
			slog.Int64(keyBuffer, s.Buffer.Buffered),
			slog.String(keyHost, s.SourceHost),
		)
		last, at = s, now
	}
}
