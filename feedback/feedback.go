package feedback

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
)

// positions is the collection of the documents.
const positions = "positions"

const (
	// replyTimeout limits the wait for the reply to a report.
	replyTimeout = 30 * time.Second
	// documentEvery is the shortest time between two documents.
	documentEvery = time.Second
	// earlyPause is the wait before a report limited by the source's commit point is
	// retried.
	earlyPause = 500 * time.Millisecond
	// errorPause is the shortest wait after an error before the next report.
	errorPause = time.Second
	// lastTimeout limits the wait for the reply to the last report of a drain.
	lastTimeout = 5 * time.Second
)

// Feedback reports to the source how far the mirror has applied its oplog.
type Feedback struct {
	cfg     Config
	metrics *metrics
	// told is the last report sent, even if its outcome is unknown.
	told report
	// ops is the operation count of the last report, seenOps the newest one, and
	// opsAt the optime that it came with.
	ops, seenOps int64
	opsAt        oplog.OpTime
	// fault is the text of the last report's error, "" if none.
	fault string
	// quiet suppresses all reports but the keep-alive, until the configuration's
	// version differs from quietConfig.
	quiet       bool
	quietConfig int64
	began       bool // a report has been accepted
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Feedback, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("feedback: %w", err)
	}
	return &Feedback{cfg: cfg, metrics: newMetrics(cfg.Registry), ops: -1, seenOps: -1}, nil
}

// Run reports the progress received from in, always the newest, until in is closed
// or ctx is done. The progress must be what checkpoint.Gaps.Reached allows to
// report; nothing is reported while its Applied is null. Errors of the source are
// events. Run may be called again after it has returned: reports never go back.
func (f *Feedback) Run(ctx context.Context, in <-chan checkpoint.Progress) error {
	// Operations are counted from 0 again, and the source may have been reconfigured.
	f.ops, f.seenOps, f.quiet = -1, -1, false
	g, ctx := errgroup.WithContext(ctx)
	todo := make(chan job)
	done := make(chan error)
	g.Go(func() error { return f.sendLoop(ctx, todo, done) })
	g.Go(func() error {
		defer close(todo)
		return f.loop(ctx, in, todo, done)
	})
	return g.Wait()
}

// sendLoop sends one report after the other.
func (f *Feedback) sendLoop(ctx context.Context, todo <-chan job, done chan<- error) error {
	for j := range todo {
		f.cfg.Meter.Enter(metric.Busy)
		err := j.send(ctx)
		f.cfg.Meter.Enter(metric.Idle)
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
		due, forced   bool // forced: even if equal to the last report
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
				rest.Reset(documentEvery)
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

// pace returns the shortest time between two reports.
func (f *Feedback) pace() time.Duration {
	if f.cfg.Mode == Document {
		return documentEvery
	}
	return 0
}

// moved reports whether p makes a report due.
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

// nextOrLater is next; it starts the retry timer if the commit point limits the
// report.
func (f *Feedback) nextOrLater(p checkpoint.Progress, forced, last bool, retry *time.Timer) (j job, ok bool) {
	j, ok, early := f.next(p, forced, last)
	if early {
		retry.Reset(earlyPause)
	}
	return j, ok
}

// next returns the report for p, false if there is none. With forced, a report
// equal to the last one is sent too. Early reports that the source's commit point
// limits the report, or prevents one.
func (f *Feedback) next(p checkpoint.Progress, forced, last bool) (j job, ok, early bool) {
	if f.cfg.Mode == None || p.Applied.IsNull() {
		return job{}, false, false
	}
	j.timeout = replyTimeout
	if last {
		j.timeout = lastTimeout
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
	j.report, early = f.told.of(p, &moment{up.Committed, up.CommittedWall})
	if j.report.applied.at.IsNull() || j.report.applied.at.After(up.Committed) {
		// The last report was to a member with a newer commit point: this one cannot
		// take it yet.
		return job{}, false, true
	}
	if j.report == f.told && !forced {
		return job{}, false, early
	}
	j.command = positionCommand(f.cfg.MemberID, up.ConfigVersion, j.report)
	j.to, j.host, j.config = up.Caller, up.Host, up.ConfigVersion
	return j, true, early
}

// settle records the outcome of a report.
func (f *Feedback) settle(ctx context.Context, j *job, err error, took time.Duration) {
	// Even after an error, the source may have received it.
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
		return // shutting down
	}
	f.quiet, f.quietConfig = lasting(err), j.config
	if text := faultText(j, err); text != f.fault {
		f.fault = text
		f.cfg.Observer.Tell(Failed{Mode: f.cfg.Mode, MemberID: f.cfg.MemberID, Host: j.host, Err: err})
	}
}
