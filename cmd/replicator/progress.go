package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/status"
)

// How the progress of a copy is shown.
const (
	progressAuto     = "auto"
	progressTerminal = "terminal"
	progressLines    = "lines"
	progressJSON     = "json"
	progressNone     = "none"
)

const (
	// redrawEvery is how often the block on a terminal is drawn. Lines come every
	// progressEvery.
	redrawEvery = time.Second
	// assumedWidth is that of a terminal of unknown width.
	assumedWidth = 80
)

// Log keys of a copy.
const (
	keyCopyNumber      = "copy"
	keyCopyPhase       = "phase"
	keyCopyStep        = "step"
	keyCopyCollections = "collections"
	keyCopyDocs        = "docs"
	keyCopyBytes       = "bytes"
	keyCopyOf          = "of"
	keyCopyDone        = "done"
	keyCopyDocRate     = "docsPerSecond"
	keyCopyByteRate    = "bytesPerSecond"
	keyCopyLeft        = "left"
	keyCopyIndexes     = "indexes"
	keyCopyFailed      = "failedIndexes"
	keyCopySpool       = "spoolBytes"
	keyCopySpoolFull   = "spoolFull"
	keyCopySlowed      = "slowedTo"
	keyCopySlowedBy    = "slowedBy"
	keyCopyStop        = "stop"
	keyCopyConsistent  = "consistentAt"
	keyCopyTook        = "took"
	keyCopyLeftOut     = "leftOut"
	keyCopyByteLimit   = "limitBytesPerSecond"
	keyCopyOpLimit     = "limitDocsPerSecond"
)

// progressMode resolves auto: to a block that is drawn in place if the log goes
// to a terminal as text, to lines otherwise.
func progressMode(mode string, w io.Writer, asJSON bool) string {
	if mode != progressAuto {
		return mode
	}
	if !asJSON && cli.OnTerminal(w) && os.Getenv("TERM") != "dumb" {
		return progressTerminal
	}
	return progressLines
}

// copyUnderWay reports whether a link's copy is being made, or caught up with.
func copyUnderWay(s *monitor.Snapshot) bool {
	return s.Copy != nil && s.Copy.Phase != checkpoint.Copied
}

// progress shows the progress of a link's copy while it runs.
type progress struct {
	mode   string
	screen *screen
	log    *slog.Logger
	width  func() int

	// shown is true after a copy was shown, until its end is shown.
	shown bool
	// replay observes the replay of the log.
	replay replay
}

// newProgress makes one. A block, and JSON, go to out; lines go to the log. If
// the log goes to the same terminal as a block, both must share one screen.
func newProgress(mode string, out io.Writer, log *slog.Logger, width func() int) *progress {
	scr, ok := out.(*screen)
	if !ok {
		scr = newScreen(out)
	}
	scr.widthOf = width
	return &progress{mode: mode, screen: scr, log: log, width: width}
}

// run shows what snap returns until ctx is done. A block stays on the terminal then.
func (p *progress) run(ctx context.Context, snap func() monitor.Snapshot) {
	every := progressEvery
	switch p.mode {
	case progressNone:
		return
	case progressTerminal:
		every = redrawEvery
	}
	defer p.screen.keep()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s := snap()
		p.show(ctx, &s)
		select {
		case <-tick.C:
		case <-ctx.Done():
			// A copy that has just ended is announced, and a block is up to date.
			if s := snap(); p.mode == progressTerminal || !copyUnderWay(&s) {
				p.show(ctx, &s)
			}
			return
		}
	}
}

// show shows one snapshot.
func (p *progress) show(ctx context.Context, s *monitor.Snapshot) {
	now := time.Now()
	switch {
	case copyUnderWay(s):
		p.shown = true
		p.replay.note(s, now)
	case p.shown && s.Copy != nil:
		p.shown, p.replay = false, replay{}
		p.showEnd(ctx, s, now)
		return
	default:
		return // no copy, one that ended before, or one not known yet
	}
	switch p.mode {
	case progressTerminal:
		p.screen.draw(block(s, &p.replay, now, p.width(), p.screen.height()))
	case progressJSON:
		p.writeJSON(s, now)
	default:
		p.log.LogAttrs(ctx, slog.LevelInfo, "copy progress", copyAttrs(s, &p.replay, now)...)
	}
}

// showEnd shows that the copy is done.
func (p *progress) showEnd(ctx context.Context, s *monitor.Snapshot, now time.Time) {
	if p.mode == progressJSON {
		p.writeJSON(s, now)
		return
	}
	p.screen.draw(nil)
	attrs := []slog.Attr{
		slog.String(keyCopyConsistent, s.Copy.Stop.String()), slog.Duration(keyCopyTook, now.Sub(s.Copy.Started).Round(time.Second)),
	}
	if len(s.LeftOut) > 0 {
		attrs = append(attrs, slog.Any(keyCopyLeftOut, leftOutNames(s.LeftOut)))
		p.log.LogAttrs(ctx, slog.LevelInfo, "the copy is done, the target is consistent but for collections that are copied again", attrs...)
		return
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "the copy is done, the target is consistent", attrs...)
}

// progressLine is a line of JSON.
type progressLine struct {
	Type       string    `json:"type"`
	At         time.Time `json:"at"`
	Link       string    `json:"link"`
	State      string    `json:"state"`
	Consistent bool      `json:"consistent"`
	// Applied is the optime up to which the log was applied to the copy.
	Applied *status.OpTime `json:"applied"`
	// ReplaySecondsLeft is the time left to apply the log up to copy.stop, nil if
	// unknown.
	ReplaySecondsLeft *float64     `json:"replaySecondsLeft,omitempty"`
	Copy              *status.Copy `json:"copy"`
}

func (p *progress) writeJSON(s *monitor.Snapshot, now time.Time) {
	line := progressLine{
		Type: "copyProgress", At: now.UTC(), Link: s.Link, State: string(s.State), Copy: status.NewCopy(s.Copy),
		Consistent: s.Copy.Phase == checkpoint.Copied && len(s.LeftOut) == 0,
	}
	if a := s.Log.Applied; !a.IsNull() {
		line.Applied = &status.OpTime{T: a.TS.T, I: a.TS.I, Term: a.Term}
	}
	if left, ok := p.replay.left(s, now); ok {
		seconds := left.Round(time.Millisecond).Seconds()
		line.ReplaySecondsLeft = &seconds
	}
	text, err := json.Marshal(&line)
	if err != nil {
		// Only rates that are not finite can fail to be encoded.
		text = []byte(`{"type":"copyProgress","error":"` + printable.Text(err.Error()) + `"}`)
	}
	_, _ = p.screen.Write(append(text, '\n')) // a write error cannot be reported
}

// copyAttrs returns the attributes of a log line.
func copyAttrs(s *monitor.Snapshot, r *replay, now time.Time) []slog.Attr {
	c := s.Copy
	attrs := []slog.Attr{slog.Int64(keyCopyNumber, c.Number), slog.String(keyCopyPhase, string(c.Phase))}
	if p := c.Progress; p != nil {
		attrs = append(attrs, slog.String(keyCopyStep, string(p.Step)),
			slog.Group(keyCopyCollections, slog.Int(keyCopyDone, p.Collections), slog.Int(keyCopyOf, p.TotalCollections)),
			slog.Group(keyCopyDocs, slog.Int64(keyCopyDone, p.Docs), slog.Int64(keyCopyOf, p.TotalDocs)),
			slog.Group(keyCopyBytes, slog.Int64(keyCopyDone, p.Bytes), slog.Int64(keyCopyOf, p.TotalBytes)),
			slog.Int64(keyCopyDocRate, int64(p.DocsPerSecond)), slog.Int64(keyCopyByteRate, int64(p.BytesPerSecond)))
		if p.Left >= 0 {
			attrs = append(attrs, slog.Duration(keyCopyLeft, p.Left.Round(time.Second)))
		}
		if p.TotalIndexes > 0 {
			attrs = append(attrs, slog.Group(keyCopyIndexes, slog.Int(keyCopyDone, p.Indexes), slog.Int(keyCopyOf, p.TotalIndexes)))
		}
		if len(p.Failed) > 0 {
			attrs = append(attrs, slog.Int(keyCopyFailed, len(p.Failed)))
		}
	}
	if c.Phase == checkpoint.Replaying {
		attrs = append(attrs, slog.String(keyApplied, s.Log.Applied.String()), slog.String(keyCopyStop, c.Stop.String()))
		if left, ok := r.left(s, now); ok {
			attrs = append(attrs, slog.Duration(keyCopyLeft, left.Round(time.Second)))
		}
	}
	if d := c.Spool; d != nil {
		attrs = append(attrs, slog.Int64(keyCopySpool, d.Bytes))
		if d.Full {
			attrs = append(attrs, slog.String(keyCopySpoolFull, d.Why))
		}
	}
	if n := c.Pace.BytesPerSecond; n > 0 {
		attrs = append(attrs, slog.Int64(keyCopyByteLimit, n))
	}
	if n := c.Pace.OpsPerSecond; n > 0 {
		attrs = append(attrs, slog.Int64(keyCopyOpLimit, n))
	}
	if isSlowed(s) {
		attrs = append(attrs, slog.Float64(keyCopySlowed, c.Pace.Factor), slog.String(keyCopySlowedBy, string(c.Pace.Side)+": "+c.Pace.Why))
	}
	return attrs
}

// isSlowed reports whether pressure slows the copy down.
func isSlowed(s *monitor.Snapshot) bool { return s.Copy.Pace.Factor > 0 && s.Copy.Pace.Factor < 1 }

// replay observes the log being applied to a copy.
type replay struct {
	// from is the first applied optime seen, at since.
	from  oplog.OpTime
	since time.Time
}

func (r *replay) note(s *monitor.Snapshot, now time.Time) {
	switch {
	case s.Copy.Phase != checkpoint.Replaying || s.Log.Applied.Before(r.from):
		*r = replay{}
	case r.since.IsZero() && !s.Log.Applied.IsNull():
		r.from, r.since = s.Log.Applied, now
	}
}

// left returns the time until the target is consistent, at the pace so far in
// seconds of the log's clock; false if unknown.
func (r *replay) left(s *monitor.Snapshot, now time.Time) (time.Duration, bool) {
	done := float64(s.Log.Applied.TS.T) - float64(r.from.TS.T)
	todo := max(0, float64(s.Copy.Stop.TS.T)-float64(s.Log.Applied.TS.T))
	if r.since.IsZero() || done <= 0 || s.Copy.Phase != checkpoint.Replaying {
		return 0, false
	}
	return time.Duration(float64(now.Sub(r.since)) * todo / done), true
}
