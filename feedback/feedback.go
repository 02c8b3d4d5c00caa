package feedback

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// heldPause is how soon a report that was held back at the source's commit
	// point is tried again.
	heldPause = 500 * time.Millisecond
	// errorPause is how soon after an error progress is reported again.
	errorPause = time.Second
	// lastTimeout is how long the end of a drain waits for an answer.
	lastTimeout = 5 * time.Second
)

// Feedback tells the source how far the mirror has come.
type Feedback struct {
	cfg     Config
	metrics *metrics
	// told is what the source has been told, or may have been.
	told report
	// ops are the operations of the last document; seenOps are the newest ones,
	// and opsAt is the entry that they came with.
	ops, seenOps int64
	opsAt        oplog.OpTime
	// fault is the text of the error that the last report had, "" if none.
	fault string
	// quiet: only the keep-alive, or another version of the configuration than
	// quietConfig, makes a report.
	quiet       bool
	quietConfig int64
	began       bool // a report has been taken
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Feedback, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("feedback: %w", err)
	}
	return &Feedback{cfg: cfg, metrics: newMetrics(cfg.Registry), ops: -1, seenOps: -1}, nil
}

// Run reports the progress that in brings, always the newest, until in is closed,
// or ctx is done. What comes in is what may be reported (checkpoint.Gaps.Reached):
// one whose Applied is null reports nothing. Errors of the source are events. It may be called again after it
// has returned: what was reported once stays the least that is reported.
func (f *Feedback) Run(ctx context.Context, in <-chan checkpoint.Progress) error {
	// Operations are counted anew, and somebody may have changed the source.
	f.ops, f.seenOps, f.quiet = -1, -1, false
	g, ctx := errgroup.WithContext(ctx)
	todo := make(chan job)
	done := make(chan error)
	g.Go(func() error { return sendLoop(ctx, todo, done) })
	g.Go(func() error {
		defer close(todo)
		return f.loop(ctx, in, todo, done)
	})
	return g.Wait()
}

// sendLoop sends one report after the other.
func sendLoop(ctx context.Context, todo <-chan job, done chan<- error) error {
	for j := range todo {
		err := j.send(ctx)
		select {
		case done <- err:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// loop decides when a report is due.
func (f *Feedback) loop(ctx context.Context, in <-chan checkpoint.Progress, todo chan<- job, done <-chan error) error {
	var (
		newest        checkpoint.Progress
		due, forced   bool // forced: also if it is what was told before
		drained       bool
		flying, rests bool
		sent          job
		started       time.Time
	)
	keepAlive, rest, retry := time.NewTimer(f.cfg.KeepAlive), stopped(), stopped()
	defer keepAlive.Stop()
	defer rest.Stop()
	defer retry.Stop()
	for {
		var send chan<- job
		var next job
		if due && !flying && (!rests || drained) {
			if next, due = f.nextOrLater(newest, forced, drained, retry); due {
				send = todo
			}
		}
		if drained && !flying && send == nil {
			return nil
		}
		select {
		case p, ok := <-in:
			if !ok {
				in, drained = nil, true
				continue
			}
			newest = p
			due = f.moved(p) || due
		case <-retry.C:
			due = due || !f.quiet
		case <-keepAlive.C:
			keepAlive.Reset(f.cfg.KeepAlive)
			due, forced = true, true
		case <-rest.C:
			rests = false
		case send <- next:
			sent, started = next, time.Now()
			flying, due, forced = true, false, false
			f.ops = newest.Ops
			keepAlive.Reset(f.cfg.KeepAlive)
			if f.cfg.Mode == Document {
				rests = true
				rest.Reset(f.cfg.Every)
			}
		case err := <-done:
			flying = false
			f.settle(ctx, &sent, err, time.Since(started))
			if err != nil {
				rests, due = true, due && !drained // The last report is tried once.
				rest.Reset(max(errorPause, time.Until(started.Add(f.pace()))))
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stopped returns a timer that does not run.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// pace is the least time between two reports.
func (f *Feedback) pace() time.Duration {
	if f.cfg.Mode == Document {
		return f.cfg.Every
	}
	return 0
}

// moved tells whether p makes a report due.
func (f *Feedback) moved(p checkpoint.Progress) bool {
	switch f.cfg.Mode {
	case None:
		return false
	case Document:
		if p.Ops != f.seenOps {
			f.seenOps, f.opsAt = p.Ops, p.Applied
		}
		durable := f.told.durable.at.Before(f.opsAt) && !p.Durable.Before(f.opsAt)
		return (p.Ops != f.ops || durable) && !f.quiet
	case Member:
	}
	if f.quiet {
		up, ok := f.cfg.Upstream.Upstream()
		return ok && up.ConfigVersion != f.quietConfig
	}
	return true
}

// nextOrLater is next; it starts retry where the commit point holds something back.
func (f *Feedback) nextOrLater(p checkpoint.Progress, forced, last bool, retry *time.Timer) (j job, ok bool) {
	j, ok, early := f.next(p, forced, last)
	if early {
		retry.Reset(heldPause)
	}
	return j, ok
}

// next returns the report that p is to be told by, false if there is none; forced
// is one that was told before, too. Held says that it, or what there would be, is
// held back by the source's commit point.
func (f *Feedback) next(p checkpoint.Progress, forced, last bool) (j job, ok, held bool) {
	if f.cfg.Mode == None || p.Applied.IsNull() {
		return job{}, false, false
	}
	j.timeout = f.cfg.Timeout
	if last {
		j.timeout = min(j.timeout, lastTimeout)
	}
	if f.cfg.Mode == Document {
		j.report, _ = f.told.of(p, nil)
		j.command = documentCommand(&f.cfg, j.report, time.Now())
		j.to, j.host = f.cfg.Primary, "the source's primary"
		return j, !j.report.applied.at.IsNull(), false
	}
	up, ok := f.cfg.Upstream.Upstream()
	if !ok || up.Committed.IsNull() {
		return job{}, false, true
	}
	j.report, held = f.told.of(p, &moment{up.Committed, up.CommittedWall})
	if j.report.applied.at.IsNull() || j.report.applied.at.After(up.Committed) {
		// What another member knew of: this one cannot be told yet.
		return job{}, false, true
	}
	if j.report == f.told && !forced {
		return job{}, false, held
	}
	j.command = positionCommand(f.cfg.MemberID, up.ConfigVersion, j.report)
	j.to, j.host, j.config = up.Caller, up.Host, up.ConfigVersion
	return j, true, held
}

// settle takes note of how a report went.
func (f *Feedback) settle(ctx context.Context, j *job, err error, took time.Duration) {
	// Whether it failed or not, the source may have been told.
	f.told = j.report
	f.metrics.reported(j, took, err)
	if err == nil {
		if !f.began || f.fault != "" {
			f.cfg.Observer.Tell(Reporting{Mode: f.cfg.Mode, Host: j.host, Applied: j.report.applied.at})
		}
		f.began, f.fault, f.quiet = true, "", false
		return
	}
	if ctx.Err() != nil {
		return // we are being stopped
	}
	f.quiet, f.quietConfig = lasting(err), j.config
	if text := faultText(j, err); text != f.fault {
		f.fault = text
		f.cfg.Observer.Tell(Failed{Mode: f.cfg.Mode, MemberID: f.cfg.MemberID, Host: j.host, Err: err})
	}
}
