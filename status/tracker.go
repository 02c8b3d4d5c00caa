package status

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

// Config configures a Tracker.
type Config struct {
	// Version is the program's.
	Version string
	// Link is the link's name.
	Link string
	// Feedback is the state of reporting to the source.
	Feedback feedback.Mode
	// Source and Target are queried every 10 s, for the oldest entry of the oplog and for
	// the set's name. May be nil: then these are unknown.
	Source, Target mongo.Caller
	// MetaDB is the metadata database of Target, which has the link's history; empty for
	// none, which is then that of this process.
	MetaDB string
	// TargetPrimary returns the target's primary as currently known; may be nil.
	// (*driver.Set).Primary is one.
	TargetPrimary func() (host string, election bson.ObjectID)
	// Registry gets the metrics. May be nil.
	Registry prometheus.Registerer
	// Observer is told each change of the verdict. May be nil. It may call the Tracker.
	Observer event.Observer
}

const (
	// startingGrace is how long a starting link counts as healthy.
	startingGrace = time.Minute
	// silentGrace is how long a link counts as healthy without an answer from the source.
	silentGrace = time.Minute
	// fullGrace is how long a link counts as healthy while its spool is full.
	fullGrace = time.Minute
	// leastRollover is the least time until the source's oplog rolls over with which a
	// link counts as healthy.
	leastRollover = 2 * time.Minute
	// askEvery is the interval between queries of Config.Source and Config.Target.
	askEvery = 10 * time.Second
	// followEvery is the interval of those about a cutover, and a block of the source's writes, that are known:
	// an operator acts on them.
	followEvery = time.Second
)

const (
	// sampleEvery is how often the operations are counted, and samples how many of
	// the counts are kept, for the rate.
	sampleEvery = time.Second
	samples     = 11
)

// Tracker tracks the state of a link. It is safe for concurrent use.
type Tracker struct {
	cfg     Config
	started time.Time
	history *history.History
	// ready is set once the process has led or stood by.
	ready atomic.Bool
	// verification is the link's, nil if it is not known.
	verification func() Verification

	mu sync.Mutex // guards the rest
	// live is the pipeline's, nil before Follow.
	live func() monitor.Snapshot
	// chosen is the last choice of a sync source.
	why     string
	refused []syncsource.Refusal
	// point is the last checkpoint; at is when this process wrote it, zero if
	// it did not.
	point checkpoint.Progress
	at    time.Time
	// report is the last event of the feedback.
	report Feedback
	// problems are by message.
	problems map[string]*Problem
	rate     []sample
	// latency are the counts of the last minute, lag are the lags of the last minutes, copying
	// is since when collections are copied.
	latency []counted
	lag     []lagged
	copying map[string]copyStart
	// heard is when the source last answered, in any attempt, or was last not asked.
	heard time.Time
	// oldest is the first entry of the source's oplog, as of asked.
	oldest bson.Timestamp
	asked  time.Time
	// blocked is whether writes of users to the source are blocked, as of blockAsked.
	blocked    bool
	blockAsked time.Time
	// cutover is the last record read of the link's cutover.
	cutover   cutoverSeen
	targetSet string
	// targetHost is the target's primary, as of the last query.
	targetHost string
	// fullSince is when the spool became full, zero if it is not.
	fullSince time.Time
	// reached is how far applying and copying were in the last sample, moved when that last
	// changed; failing is when the first attempt failed since then, zero if none has.
	reached        reached
	moved, failing time.Time
	// holding is since when the conditions that hold were seen to, by name.
	holding map[string]time.Time
	// verdict is the name of the last verdict that was sampled, verdictAt when it became
	// that; announced is the one that was announced last.
	verdict, announced string
	verdictAt          time.Time
}

// reached is how far a link has come.
type reached struct {
	applied oplog.OpTime
	ops     int64
	// copy is the number of the copy, docs and indexes are how much of it is done.
	copy    int64
	docs    int64
	indexes int
}

// sample is how many operations there were at a time, and what the stages had done.
type sample struct {
	at      time.Time
	ops     int64
	applier applier.Stats
	work    monitor.Work
	// reads reports whether a member of the source was read from, paused whether the link was, or may have been: that is read
	// before anything is applied.
	reads, paused bool
}

// New registers metrics. It does no I/O and starts nothing.
func New(cfg Config) (*Tracker, error) {
	t := &Tracker{cfg: cfg, started: time.Now(), history: history.New(), heard: time.Now(), problems: map[string]*Problem{}}
	t.report = Feedback{Mode: cfg.Feedback.String(), State: "off"}
	if cfg.Feedback != feedback.None {
		t.report.State = "waiting"
	}
	if cfg.Registry != nil {
		if err := cfg.Registry.Register(newCollector(t)); err != nil {
			return nil, fmt.Errorf("status: register metrics: %w", err)
		}
	}
	return t, nil
}

// Follow takes the state from a pipeline from now on: its Snapshot method.
func (t *Tracker) Follow(live func() monitor.Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live = live
}

// Observe is an event.Observer: it records the events of the stages.
func (t *Tracker) Observe(e event.Event) {
	now := time.Now().UTC()
	t.tell(e, now)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := e.(type) {
	case syncsource.SourceChosen:
		t.why, t.refused = e.Reason, e.Refused
	case syncsource.NoSource:
		t.why, t.refused = e.Reason, e.Refused
	case checkpoint.Acquired:
		t.point.Applied, t.point.FetchFrom = e.Applied, e.FetchFrom
	case checkpoint.Advanced:
		t.point.Applied, t.point.FetchFrom, t.at = e.Applied, e.FetchFrom, now
	case feedback.Reporting:
		t.report = Feedback{Mode: e.Mode.String(), State: "reporting", Host: e.Host, Since: &now}
	case feedback.Failed:
		t.report = Feedback{Mode: e.Mode.String(), State: "failing", Host: e.Host, Since: &now, Error: e.Err.Error(), Hint: e.Hint()}
	}
	if e.Level() < slog.LevelWarn {
		return
	}
	p := t.problems[e.Message()]
	if p == nil {
		p = &Problem{Message: e.Message(), FirstAt: now}
		t.problems[e.Message()] = p
	}
	p.Count++
	p.Level, p.LastAt, p.Fields = e.Level().String(), now, map[string]string{}
	addFields(p.Fields, "", e.LogValue())
}

// addFields adds the attributes of a group, with dots between nested keys.
func addFields(fields map[string]string, prefix string, v slog.Value) {
	v = v.Resolve()
	if v.Kind() != slog.KindGroup {
		fields[prefix] = v.String()
		return
	}
	for _, a := range v.Group() {
		key := a.Key
		if prefix != "" {
			key = prefix + "." + key
		}
		addFields(fields, key, a.Value)
	}
}

func (t *Tracker) follows() func() monitor.Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// Run samples operations and queries the source and the target until ctx is done;
// it returns the cause.
func (t *Tracker) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { t.askLoop(ctx) })
	asking.Go(func() { t.historyLoop(ctx) })
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		t.sample()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sample counts the operations.
func (t *Tracker) sample() {
	live := t.follows()
	if live == nil {
		return
	}
	p := live()
	s := sample{time.Now(), p.Progress.Ops, p.Applier, p.Work, p.SourceHost != "", p.Control != nil && (p.Control.Paused != nil || !p.Control.Known)}
	t.count(&p, s)
	now := t.Snapshot()
	t.note(&now)
	_ = t.readiness(&now) // between two questions it may have been ready
	t.record(&now)
	if change, ok := t.settled(&now.Verdict, s.at); ok {
		t.tell(change, s.at)
		t.cfg.Observer.Tell(change)
	}
}

// count keeps a sample.
func (t *Tracker) count(p *monitor.Snapshot, s sample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.HeardAt.After(t.heard) {
		t.heard = p.HeardAt
	}
	if !p.Blocked.IsZero() {
		t.heard = s.at // It is not asked: it may be silent from now on.
	}
	t.noteSpool(p, s.at)
	t.noteProgress(p, s.at)
	t.noteLatency(p, s.at)
	if t.rate = append(t.rate, s); len(t.rate) > samples {
		t.rate = t.rate[1:]
	}
}

// note keeps what a Snapshot shows of the trend.
func (t *Tracker) note(s *Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLag(s)
	t.noteCopying(s)
}

// noteProgress notes whether anything was applied or copied since the last sample. The
// tracker is locked.
func (t *Tracker) noteProgress(p *monitor.Snapshot, now time.Time) {
	r := reached{applied: p.Log.Applied, ops: p.Progress.Ops}
	if c := p.Copy; c != nil {
		r.copy = c.Number
		if c.Progress != nil {
			r.docs, r.indexes = c.Progress.Docs, c.Progress.Indexes
		}
	}
	switch {
	case t.moved.IsZero() || r != t.reached:
		t.reached, t.moved, t.failing = r, now, time.Time{}
	case t.failing.IsZero() && p.LastErrorAt.After(t.moved):
		t.failing = p.LastErrorAt
	}
}
