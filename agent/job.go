package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// State is the state of a link in this process.
type State string

// The states.
const (
	// Waiting: the process has no room, or does not have the link's settings yet.
	Waiting State = "waiting"
	// Running: View has the link's own state.
	Running State = "running"
	// Draining: it is about to end.
	Draining State = "draining"
	// Retrying: it has ended, and starts again by itself.
	Retrying State = "retrying"
	// Ended: it has ended, and starts again once its settings have changed, or by Retry.
	Ended State = "ended"
)

const (
	keyLink  = "link"
	keyCode  = "exitCode"
	keyError = "error"
	keyHint  = "hint"
	keyWait  = "wait"
	keyTerm  = "term"
)

// job is a link that this process is to run.
type job struct {
	name  string
	term  int64
	since time.Time // when it was assigned
	// ran: in its last run it got as far as having something to show. Written and read by Work.
	ran bool
	// again wakes one that has ended. Its capacity is one.
	again chan struct{}

	mu      sync.Mutex // guards the rest
	state   State
	entered time.Time
	why     string
	runs    int
	// failures counts the ends with an error, of which failure is the last.
	failures int
	failure  *Failure
	nextTry  time.Time
	view     *View
}

// Failure is the end of a link with an error.
type Failure struct {
	At time.Time `json:"at"`
	// Code is the exit code that replicator run would have ended with.
	Code  int    `json:"exitCode"`
	Error string `json:"error"`
	Do    string `json:"do,omitempty"`
	// Helps is true if a restart can help.
	Helps bool `json:"retried"`
}

func (j *job) enter(s State, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state, j.why, j.entered, j.nextTry = s, why, time.Now(), time.Time{}
}

// begin is enter for a run that begins, and returns its number.
func (j *job) begin() int {
	j.enter(Running, "")
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs++
	return j.runs
}

// drains is enter for a run that is to drain. It may come when the next one has begun.
func (j *job) drains(run int, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state == Running && j.runs == run {
		j.state, j.why, j.entered = Draining, why, time.Now()
	}
}

// fails is enter for one that has ended.
func (j *job) fails(s State, f Failure, next time.Time) {
	j.enter(s, f.Error)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failure, j.nextTry = &f, next
	j.failures++
}

// hide ends what show began, and reports whether that was.
func (j *job) hide() (shown bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	shown = j.view != nil
	j.view = nil
	return shown
}

func (j *job) show(v View) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.view = &v
}

// noRoom is the reason why an assigned link waits.
const noRoom = "as many links run as the process has room for"

// Work runs a link until ctx is done, then returns once the link has drained. The term is that
// of the assignment. It returns an error before that if the link has failed Config.MoveAfter
// times in a row, and a restart could help, maybe elsewhere.
func (a *Agent) Work(ctx context.Context, name string, term int64) error {
	log := a.cfg.Log.With(slog.String(keyLink, name))
	j := &job{name: name, term: term, since: time.Now(), again: make(chan struct{}, 1), state: Waiting, entered: time.Now(), why: noRoom}
	a.mu.Lock()
	a.jobs[name] = j
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.jobs[name] == j {
			delete(a.jobs, name)
		}
	}()
	log.LogAttrs(ctx, slog.LevelInfo, "this process runs the link", slog.Int64(keyTerm, term))
	select {
	case a.room <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-a.room }()
	return a.attempts(ctx, j, log)
}

// attempts runs a link again and again until ctx is done, or it keeps failing.
func (a *Agent) attempts(ctx context.Context, j *job, log *slog.Logger) error {
	pause, failures := a.cfg.RetryMin, 0
	for ctx.Err() == nil && a.hard.Err() == nil {
		l, found, _ := a.find(j.name)
		if !found {
			if err := a.unlisted(ctx, j); err != nil {
				return err
			}
			continue
		}
		began := time.Now()
		again, err := a.once(ctx, j, l)
		switch {
		case ctx.Err() != nil || a.hard.Err() != nil:
			a.given(ctx, log, j, err)
			return nil //nolint:nilerr // it was to end, and how it did is logged
		case again:
			log.LogAttrs(ctx, slog.LevelInfo, "the link's settings have changed")
			pause, failures = a.cfg.RetryMin, 0
			continue
		}
		if time.Since(began) > a.cfg.RetryMax {
			pause, failures = a.cfg.RetryMin, 0
		}
		if !a.failed(ctx, j, l, err, pause) {
			pause, failures = a.cfg.RetryMin, 0
			continue
		}
		pause = min(2*pause, a.cfg.RetryMax)
		if failures++; err != nil && failures >= a.cfg.MoveAfter {
			return &shownError{text: a.cfg.Explain(err).Error, err: err} // others are shown it
		}
	}
	return nil
}

// shownError is an error with the text of its Failure, which shows no secrets.
type shownError struct {
	text string
	err  error
}

func (e *shownError) Error() string { return e.text }
func (e *shownError) Unwrap() error { return e.err }

// unlistedFor is how long the file of this process may not have a link that it is to run: a
// file of a Kubernetes ConfigMap may be a minute older than that of another process.
const unlistedFor = 2 * time.Minute

// errUnlisted is returned after that.
var errUnlisted = errors.New("the links file of this process does not have the link: give all processes the same file")

// unlisted waits until the file has the link, or ctx is done.
func (a *Agent) unlisted(ctx context.Context, j *job) error {
	j.enter(Waiting, "the links file of this process does not have the link")
	limit := time.NewTimer(unlistedFor)
	defer limit.Stop()
	for {
		_, found, changed := a.find(j.name)
		if found {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-limit.C:
			return errUnlisted
		}
	}
}

// given logs how a link has ended that this process no longer runs.
func (a *Agent) given(ctx context.Context, log *slog.Logger, j *job, err error) {
	if err == nil || !j.ran {
		log.LogAttrs(ctx, slog.LevelInfo, "this process no longer runs the link")
		return
	}
	f := a.cfg.Explain(err)
	log.LogAttrs(ctx, slog.LevelWarn, "this process no longer runs the link, which has not drained",
		slog.Int(keyCode, f.Code), slog.String(keyError, f.Error), slog.String(keyHint, f.Do))
	if a.soft.Err() != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.undrained = append(a.undrained, j.name)
	}
}

// once runs a link until it ends. Again is true if it ended because its settings have changed.
func (a *Agent) once(ctx context.Context, j *job, l Link) (again bool, err error) {
	soft, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	watching, endWatch := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if a.other(watching, l.Name, l.Settings, nil) {
			drain(errChanged)
		}
	})
	run := j.begin()
	draining := context.AfterFunc(soft, func() { j.drains(run, context.Cause(soft).Error()) })
	err = l.Run(a.hard, soft, j.show)
	draining()
	again = errors.Is(context.Cause(soft), errChanged)
	endWatch(nil)
	watch.Wait()
	j.ran = j.hide()
	return again, err
}

// failed shows how a link has ended, and returns when it is to start again. It reports whether
// that is because a restart can help, not because of other settings.
func (a *Agent) failed(ctx context.Context, j *job, l Link, err error, atMost time.Duration) (helps bool) {
	f := Failure{Error: "it has ended by itself", Helps: true}
	if err != nil {
		f = a.cfg.Explain(err)
	}
	f.At = time.Now()
	select {
	case <-j.again: // that was for an earlier end
	default:
	}
	attrs := []slog.Attr{slog.String(keyLink, l.Name), slog.Int(keyCode, f.Code), slog.String(keyError, f.Error), slog.String(keyHint, f.Do)}
	if !f.Helps {
		j.fails(Ended, f, time.Time{})
		a.cfg.Log.LogAttrs(ctx, slog.LevelError, "the link has ended: a restart alone does not help, and it is started again once its settings have changed, or by replicator agent retry", attrs...)
		a.other(ctx, l.Name, l.Settings, j.again)
		return false
	}
	wait := atMost/2 + rand.N(atMost/2+1)
	j.fails(Retrying, f, f.At.Add(wait))
	a.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "the link has ended, and is started again", append(attrs, slog.Duration(keyWait, wait))...)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return !a.other(ctx, l.Name, l.Settings, j.again)
}

// Retry starts a link again now that has ended here, as if its settings had changed, and reports whether
// there is one: the cause may be gone.
func (a *Agent) Retry(name string) bool {
	a.mu.Lock()
	j := a.jobs[name]
	a.mu.Unlock()
	if j == nil || !j.hasEnded() {
		return false
	}
	select {
	case j.again <- struct{}{}:
	default: // it is about to
	}
	return true
}

func (j *job) hasEnded() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state == Ended || j.state == Retrying
}
