package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Requests reads and answers the requests of one link: *request.Store.
type Requests interface {
	// Settings reads them, List the records, the newest first.
	Settings(ctx context.Context) (request.Settings, error)
	// List is described with Settings.
	List(ctx context.Context) ([]request.Record, error)
	// Set stores the settings, if they have not changed since was was read. Like all that is done by
	// a Leader, it fails once another process has acquired the lease.
	Set(ctx context.Context, by request.Leader, was, next request.Settings) (request.Settings, error)
	// Answered closes or moves an open record. It is idempotent.
	Answered(ctx context.Context, by request.Leader, id, state, outcome string) error
	// Prune removes old records of a list.
	Prune(ctx context.Context, list []request.Record) error
	// Read reads the limits of the copy, and the collections to copy again.
	Read(ctx context.Context) (request.Requests, error)
	// LimitUnder sets the limits of the copy, negative for none requested.
	LimitUnder(ctx context.Context, by request.Leader, bytesPerSecond, opsPerSecond int64) error
	// ResyncUnder asks for a collection to be copied again. It is idempotent while that is open.
	ResyncUnder(ctx context.Context, by request.Leader, ns oplog.Namespace) error
}

// Config has the settings of a Controller.
type Config struct {
	Requests Requests
	// Target is asked for signs of pressure while the throttle is adaptive.
	Target mongo.Caller
	// Applied returns the position of the link, for outcomes.
	Applied func() oplog.OpTime
	// Cuts makes the consistent cuts of the link.
	Cuts Cuts
	// Repairs rewrites documents.
	Repairs Repairs
	// Verification compares the link continuously, nil if this process does not.
	Verification Verification
	// SetLevel sets the level of the log, empty for the one of the start. May be nil.
	SetLevel func(level string)
	Observer event.Observer
}

const (
	// lookEvery is how often the settings are read, lookWithin how long that may take.
	lookEvery  = time.Second
	lookWithin = 10 * time.Second
	// lookSoon is how often it is read for attentive after a new request: commands ask for one thing
	// after the other, and while a cutover drains no client can write.
	lookSoon  = 50 * time.Millisecond
	attentive = 30 * time.Second
	// listEvery is how often the records are read although nothing has been asked.
	listEvery = 30 * time.Second
	// shown is how many records a Status has, besides those that are open.
	shown = 50
)

// Keys of the log.
const (
	keyBy      = "by"
	keySince   = "since"
	keyWhy     = "why"
	keyKind    = "kind"
	keyState   = "state"
	keyOutcome = "outcome"
	keyError   = "error"
	keyID      = "request"
)

// Controller carries out the requests of one link while this process leads it. Run is called
// for each leadership, the other methods are safe for concurrent use.
type Controller struct {
	cfg   Config
	brake *Brake
	// writing is full while something is written under the lease.
	writing chan struct{}

	mu sync.Mutex // guards the rest
	// leader is the lease under which requests are acted on, nil while there is none. stop
	// cancels writes in flight under it.
	leader request.Leader
	stop   context.CancelCauseFunc
	// settings were read last; known is false until they were read in this leadership. unread is
	// the time since which it cannot be read, zero if it can; why is the reason.
	settings request.Settings
	known    bool
	unread   time.Time
	why      string
	// records are the newest ones, and those that are open, the newest first. Limits are those of the copy, -1 for those
	// that the process was started with.
	records []request.Record
	limits  request.Requests
	pacer   *pace.Pacer

	// The rest belongs to Run.

	listed time.Time
	// asked is when a new request was found, zero if none was; open are those that were open at the last look.
	asked time.Time
	open  map[string]bool
	// seen is the count of the settings whose records were read.
	seen int64
	// measuring ends the pacer.
	measuring func()
	// cutting are the cuts that were asked for, by the ids of the requests.
	cutting map[string]*cutting
	// failing is since when requests could not be carried out, by their ids.
	failing map[string]time.Time
}

// New returns a Controller. It does no I/O and starts nothing.
func New(cfg Config) *Controller {
	return &Controller{cfg: cfg, brake: newBrake(), writing: make(chan struct{}, 1), measuring: func() {}}
}

// Brake returns the brake of the link, which also its parts use.
func (c *Controller) Brake() *Brake { return c.brake }

// Run reads the settings, and carries out requests, until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	defer c.end()
	next := time.NewTimer(lookEvery)
	defer next.Stop()
	for {
		c.look(ctx)
		next.Reset(c.lookAfter())
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookAfter is the pause before the next look.
func (c *Controller) lookAfter() time.Duration {
	if !c.asked.IsZero() && time.Since(c.asked) < attentive {
		return lookSoon
	}
	return lookEvery
}

// Begin is called before Run, as a process begins to lead: everything is paused until the settings
// have been read, as another process may have led, and paused the link.
func (c *Controller) Begin() {
	c.brake.setPaused(true)
	c.Leads(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.listed, c.seen, c.cutting = false, time.Time{}, -1, map[string]*cutting{}
	c.failing = map[string]time.Time{}
	c.unread, c.why = time.Time{}, ""
}

func (c *Controller) end() {
	c.measuring()
	c.brake.setPaused(true)
}

// look reads once, and carries out open requests.
func (c *Controller) look(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := c.read(limited)
	if err == nil {
		err = c.serve(limited)
	}
	if ctx.Err() != nil || passes(err) {
		return
	}
	c.tell(err)
}

// tell records whether the settings could be read. Those that were read last stay in effect.
func (c *Controller) tell(err error) {
	c.mu.Lock()
	was, known := c.unread, c.known
	switch {
	case err == nil:
		c.unread, c.why = time.Time{}, ""
	case was.IsZero():
		c.unread, c.why = time.Now(), err.Error()
	default:
		c.why = err.Error()
	}
	c.mu.Unlock()
	switch {
	case err == nil && !was.IsZero():
		c.cfg.Observer.Log(slog.LevelInfo, "requests of operators can be read again")
	case err != nil && was.IsZero() && known:
		c.cfg.Observer.Log(slog.LevelWarn, "requests of operators cannot be read: pause and throttle stay as they are", slog.String(keyError, err.Error()))
	case err != nil && was.IsZero():
		c.cfg.Observer.Log(slog.LevelWarn, "requests of operators cannot be read: nothing is applied before that, as the link may be paused", slog.String(keyError, err.Error()))
	}
}

// read reads the settings, and applies them in this process.
func (c *Controller) read(ctx context.Context) error {
	settings, err := c.cfg.Requests.Settings(ctx)
	if err != nil {
		return err
	}
	c.apply(ctx, settings)
	return nil
}

// apply applies settings in this process.
func (c *Controller) apply(ctx context.Context, s request.Settings) {
	c.mu.Lock()
	level := !c.known || c.settings.Level != s.Level
	was := c.settings.Paused
	if !c.known {
		was = nil
	}
	c.settings, c.known = s, true
	c.mu.Unlock()
	c.tellPause(was, s.Paused)
	if level && c.cfg.SetLevel != nil {
		c.cfg.SetLevel(s.Level)
	}
	c.setThrottle(ctx, &s.Throttle)
	c.brake.setPaused(s.Paused != nil)
}

// tellPause says that the link is paused, also if this process finds it so, and when that ends.
func (c *Controller) tellPause(was, now *request.Paused) {
	switch {
	case was == nil && now != nil:
		c.cfg.Observer.Log(slog.LevelWarn, "the link is paused: nothing is applied before it is resumed",
			slog.Time(keySince, now.Since), slog.String(keyBy, cmp.Or(now.By, "an operator")), slog.String(keyWhy, now.Why))
	case was != nil && now == nil:
		c.cfg.Observer.Log(slog.LevelInfo, "the link is resumed")
	}
}

// setThrottle sets the limits; the adaptive ones are a part of them.
func (c *Controller) setThrottle(ctx context.Context, l *request.Limits) {
	c.mu.Lock()
	pacer := c.pacer
	c.mu.Unlock()
	switch {
	case l.Adaptive && pacer == nil:
		pacer = c.measure(ctx)
	case !l.Adaptive && pacer != nil:
		c.measuring()
		pacer = nil
	}
	factor, took := 1.0, (func(time.Duration, int, int64))(nil)
	if pacer != nil {
		factor, took = pacer.Status().Factor, c.took
	}
	c.brake.setLimits(part(l.OpsPerSecond, factor), part(l.BytesPerSecond, factor), took)
}

// took tells the present pacer of a flush: the brake keeps this function from one leadership to the next.
func (c *Controller) took(d time.Duration, ops int, bytes int64) {
	c.mu.Lock()
	pacer := c.pacer
	c.mu.Unlock()
	if pacer != nil {
		pacer.Took(clone.Target, d, ops, int(bytes))
	}
}

// part returns a part of a limit, at least 1, and 0 for none.
func part(limit int64, factor float64) float64 {
	if limit == 0 {
		return 0
	}
	return max(1, float64(limit)*factor)
}

// measure starts to look for signs that the target has too much to do.
func (c *Controller) measure(ctx context.Context) *pace.Pacer {
	pacer, err := pace.New(pace.Config{Target: c.cfg.Target})
	if err != nil { // It has no limits of its own that could be wrong.
		panic("control: invariant broken: a pacer without limits is valid: " + err.Error())
	}
	ctx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = pacer.Run(ctx) // it was canceled by us
	}()
	c.measuring = func() {
		stop(nil)
		<-done
		c.setPacer(nil)
		c.measuring = func() {}
	}
	c.setPacer(pacer)
	return pacer
}

func (c *Controller) setPacer(p *pace.Pacer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pacer = p
}

// serve reads the records if there may be open ones, and acts on them, the oldest first.
func (c *Controller) serve(ctx context.Context) error {
	c.mu.Lock()
	count := c.settings.Count()
	open := false
	for i := range c.records {
		open = open || c.records[i].Open()
	}
	c.mu.Unlock()
	if !open && count == c.seen && time.Since(c.listed) < listEvery {
		return nil
	}
	list, err := c.cfg.Requests.List(ctx)
	if err != nil {
		return err
	}
	leads := c.leads()
	if leads {
		err = c.cfg.Requests.Prune(ctx, list) // those closed below can still be read
		err = errors.Join(err, c.actOn(ctx, list))
	}
	limits, unread := c.cfg.Requests.Read(ctx)
	if err = errors.Join(err, unread); err == nil && leads {
		c.seen, c.listed = count, time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.records = toShow(list); unread == nil {
		c.limits = limits
	}
	return err
}

// toShow returns the newest records of a list, and the older ones that are open.
func toShow(list []request.Record) []request.Record {
	records := slices.Clip(list[:min(len(list), shown)])
	for i := len(records); i < len(list); i++ {
		if list[i].Open() {
			records = append(records, list[i])
		}
	}
	return records
}

// Status has the settings, and the requests.
type Status struct {
	// Known is false if it has not been read yet since this process leads: nothing is applied.
	Known    bool
	Paused   *request.Paused
	Throttle request.Limits
	// CopyBytesPerSecond and CopyOpsPerSecond are limits of the copy, 0 for none, negative for
	// those that the process was started with.
	CopyBytesPerSecond, CopyOpsPerSecond int64
	// Factor is the part of the limits of applying that pressure on the target leaves; Why is
	// the reason if it is below 1.
	Factor float64
	Why    string
	Level  string
	// UnreadSince is since when it cannot be read, zero if it can; UnreadWhy is why not.
	UnreadSince time.Time
	UnreadWhy   string
	// Records are the newest 50, and older ones that are open, the newest first.
	Records []request.Record
}

// Status returns the present state.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Known: c.known, Paused: c.settings.Paused, Throttle: c.settings.Throttle, Level: c.settings.Level, Factor: 1,
		CopyBytesPerSecond: c.limits.BytesPerSecond, CopyOpsPerSecond: c.limits.OpsPerSecond,
		UnreadSince: c.unread, UnreadWhy: c.why, Records: c.records,
	}
	if c.pacer != nil {
		p := c.pacer.Status()
		s.Factor, s.Why = p.Factor, p.Why
	}
	return s
}

// Paused reports whether nothing may be applied: the link is paused, or it is not known whether it is.
func (c *Controller) Paused() bool { return c.brake.Paused() }

// answer writes the outcome of a record, and remembers it.
func (c *Controller) answer(ctx context.Context, r *request.Record, state, outcome string) error {
	if r.State == state && r.Outcome == outcome {
		return nil
	}
	err := c.under(ctx, func(ctx context.Context, by request.Leader) error {
		return c.cfg.Requests.Answered(ctx, by, r.ID, state, outcome)
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
	first := r.State == request.Asked
	r.State, r.Outcome, r.ChangedAt = state, outcome, time.Now().UTC()
	if state != request.Working || first {
		c.cfg.Observer.Log(slog.LevelInfo, "request of an operator", slog.String(keyKind, string(r.Kind)), slog.String(keyState, state),
			slog.String(keyOutcome, outcome), slog.String(keyBy, cmp.Or(r.By, "an operator")), slog.String(keyWhy, r.Why), slog.String(keyID, r.ID))
	}
	return nil
}

// set stores changed settings, then applies them here.
func (c *Controller) set(ctx context.Context, change func(s *request.Settings)) error {
	c.mu.Lock()
	was := c.settings
	c.mu.Unlock()
	next := was
	change(&next)
	var now request.Settings
	err := c.under(ctx, func(ctx context.Context, by request.Leader) (err error) {
		now, err = c.cfg.Requests.Set(ctx, by, was, next)
		return err
	})
	if err != nil {
		return fmt.Errorf("act on a request: %w", err)
	}
	c.apply(ctx, now)
	return nil
}
