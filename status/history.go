package status

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// History returns the figures and events of the last 1, 6 or 24 hours; it returns an error
// for another time.
func (t *Tracker) History(span time.Duration) (history.View, error) {
	return t.history.View(span, time.Now())
}

// EventsAfter returns the events of the link that became known after the one with a Seq, in that
// order; all that are kept for 0. Each Seq grows over restarts and takeovers of the link.
func (t *Tracker) EventsAfter(seq uint64) []history.Event { return t.history.EventsAfter(seq) }

// News returns a channel that is closed when there is another event: take the channel
// first, then the events.
func (t *Tracker) News() <-chan struct{} { return t.history.News() }

// record adds a sample to the history. A process that does not lead knows nothing.
func (t *Tracker) record(s *Snapshot) {
	if !s.leads() {
		return
	}
	v := history.Unknown()
	v.Set(history.LagSeconds, s.LagSeconds)
	v.Set(history.OldestUnappliedSeconds, s.AgeOfOldestUnappliedSeconds)
	v.Set(history.LatencyP50Seconds, s.Latency.P50Seconds)
	v.Set(history.LatencyP95Seconds, s.Latency.P95Seconds)
	v.Set(history.LatencyP99Seconds, s.Latency.P99Seconds)
	v.Set(history.InsertsPerSecond, s.Rates.InsertsPerSecond)
	v.Set(history.UpdatesPerSecond, s.Rates.UpdatesPerSecond)
	v.Set(history.DeletesPerSecond, s.Rates.DeletesPerSecond)
	v.Set(history.CommandsPerSecond, s.Rates.CommandsPerSecond)
	v.Set(history.BytesPerSecond, s.Rates.BytesPerSecond)
	v.Set(history.OplogWindowSeconds, s.OplogWindowLeftSeconds)
	v[history.BufferBytes], v[history.SpoolBytes] = float64(s.Buffer.Bytes), 0
	if s.Spool != nil {
		v[history.SpoolBytes] = float64(s.Spool.Bytes)
	}
	if s.Copy != nil && s.Copy.Progress != nil {
		p := s.Copy.Progress
		v[history.CopyDocs], v[history.CopyBytes] = float64(p.Docs), float64(p.Bytes)
		v.Set(history.CopyEtaSeconds, p.SecondsLeft)
	}
	t.history.Add(s.At, v)
}

// tell adds an event to the history: what the log has of an incident, and commands of the
// source.
func (t *Tracker) tell(e event.Event, now time.Time) {
	level := e.Level()
	if _, command := e.(applier.CommandApplied); command {
		level = max(level, slog.LevelInfo)
	}
	if level < slog.LevelInfo {
		return
	}
	fields := map[string]string{}
	addFields(fields, "", e.LogValue())
	t.history.Tell(history.Event{At: now, Level: level.String(), Kind: kindOf(e), Message: e.Message(), Fields: fields})
}

// kindOf says what an event is about.
func kindOf(e event.Event) history.Kind {
	switch e.(type) {
	case applier.CommandApplied:
		return history.OfDDL
	case syncsource.SourceChosen, syncsource.NoSource, feedback.Reporting, feedback.Failed:
		return history.OfSource
	case checkpoint.Acquired:
		return history.OfLease
	case initialsync.StepChanged, initialsync.CopyEnded, initialsync.CopyMoved, monitor.Consistent,
		resync.Began, resync.Ended, resync.PartEvent:
		return history.OfCopy
	case VerdictChanged, monitor.StateChanged:
		return history.Other
	}
	message := e.Message()
	if message == "waiting" || message == "waiting no more" { // the reason says which side
		if strings.HasPrefix(event.Attr(e, keyReason).String(), "waiting for the "+sideSource) {
			return history.OfSource
		}
		return history.OfTarget
	}
	for _, k := range kinds {
		for _, word := range k.words {
			if strings.Contains(message, word) {
				return k.kind
			}
		}
	}
	return history.Other
}

// kinds are those of lines of the log, by words in their messages; the first that fits.
var kinds = []struct {
	kind  history.Kind
	words []string
}{
	{history.OfControl, []string{"pause", "throttl", "request", "operator"}},
	{history.OfLease, []string{"lease", "link over", "leads", "named lock"}},
	{history.OfDivergence, []string{"diverged", "foreign writes", "foreign write", "deleted from a capped collection stay"}},
	{history.OfDDL, []string{"index", "earlier operations", "other lanes", "views"}},
	{history.OfCopy, []string{"copy", "copied", "copying", "consistent", "set aside"}},
	{history.OfTarget, []string{"target", "nothing is applied", "applied again", "writers"}},
	{history.OfSource, []string{"source", "member", "oplog", "transactions without an end"}},
}

const (
	// keepEvery is how often it is looked whether the history is to be read or stored, and
	// storeEvery how often that happens.
	keepEvery  = 5 * time.Second
	storeEvery = time.Minute
	// storeWithin limits one read or write of it, and lastWithin the last write.
	storeWithin = 10 * time.Second
	lastWithin  = 2 * time.Second
	// storeGrace is how long it may not be stored before that is logged.
	storeGrace = 5 * time.Minute
)

// keeper reads and stores the history of the link. It belongs to one goroutine.
type keeper struct {
	t     *Tracker
	store history.Store
	// filled is set once the history stored by earlier processes is known. Before, nothing is
	// stored: it would be lost.
	filled bool
	// at is when it was read or stored last, term the term under which this process led last.
	at   time.Time
	term int64
	// failing is the time since which it cannot be read or stored, zero if it can; said is set once
	// that was logged, damaged once it was logged that the stored history cannot be used.
	failing       time.Time
	said, damaged bool
}

// historyLoop reads and stores the history until ctx is done, and stores it once more then.
func (t *Tracker) historyLoop(ctx context.Context) {
	if t.cfg.Target == nil || t.cfg.MetaDB == "" {
		return
	}
	k := &keeper{t: t, store: history.Store{Target: t.cfg.Target, DB: t.cfg.MetaDB, Link: t.cfg.Link}}
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		k.keep(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			k.last(ctx)
			return
		}
	}
}

// keep reads or stores the history if it is time.
func (k *keeper) keep(ctx context.Context) {
	live := k.t.follows()
	if live == nil {
		return
	}
	p, now := live(), time.Now()
	ctx, cancel := context.WithTimeout(ctx, storeWithin)
	defer cancel()
	switch p.State {
	case monitor.Standby:
		// It shows what the leader has stored.
		if !k.filled || k.term != 0 || now.Sub(k.at) >= storeEvery {
			k.filled, k.term = k.read(ctx, (*history.History).Replace), 0
		}
	case monitor.Starting, monitor.Stale, monitor.Failed, monitor.Stopped:
		k.fill(ctx)
	case monitor.InitialSync, monitor.CatchingUp, monitor.Steady:
		took := k.term == 0
		k.term = p.Term
		if took {
			// The previous leader may have stored a newer history at its end than was read.
			k.filled = false
		}
		if k.fill(ctx) && now.Sub(k.at) >= storeEvery {
			k.write(ctx)
		}
	}
}

// fill reads the stored history, unless it was read already, and reports whether it was.
func (k *keeper) fill(ctx context.Context) bool {
	k.filled = k.filled || k.read(ctx, (*history.History).Fill)
	return k.filled
}

// read reads the stored history, and reports whether it is known now: a document that cannot
// be used is treated as absent.
func (k *keeper) read(ctx context.Context, into func(*history.History, *history.Stored)) bool {
	stored, err := k.store.Read(ctx)
	damaged, isDamaged := errors.AsType[*history.DamagedError](err)
	switch {
	case isDamaged:
		if !k.damaged {
			k.damaged = true
			k.say("the history of the link cannot be used, and starts over", damaged)
		}
	case err != nil:
		k.failed(ctx, err)
		return false
	case stored != nil:
		into(k.t.history, stored)
	}
	k.at, k.failing = time.Now(), time.Time{}
	return true
}

// write stores the history.
func (k *keeper) write(ctx context.Context) {
	stored := k.t.history.Stored()
	stored.Term, stored.At = k.term, time.Now()
	if err := k.store.Write(ctx, stored); err != nil {
		// One that is superseded does not lead any more, and notices soon. If it continues
		// leading, the document is not its successor's.
		k.failed(ctx, err)
		return
	}
	k.at, k.failing, k.said, k.damaged = time.Now(), time.Time{}, false, false
}

// last stores the history of a process that ends, and has led until now.
func (k *keeper) last(ctx context.Context) {
	if !k.filled || k.term == 0 || !errors.Is(context.Cause(ctx), context.Canceled) {
		return // also one that is told to end at once
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWithin)
	defer cancel()
	k.write(ctx)
}

// failed notes that the history could not be read or stored. The link
// does not depend on it, so failed logs that only if it lasts.
func (k *keeper) failed(ctx context.Context, err error) {
	switch now := time.Now(); {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
	case k.failing.IsZero():
		k.failing = now
	case now.Sub(k.failing) >= storeGrace && !k.said:
		k.said = true
		k.say("the history of the link cannot be stored: it is lost when this process ends", err)
	}
}

// say warns.
func (k *keeper) say(message string, err error) {
	e := event.NewLine(slog.LevelWarn, message, slog.String(keyReason, err.Error()))
	k.t.Observe(e)
	k.t.cfg.Observer.Tell(e)
}

const keyReason = "reason"
