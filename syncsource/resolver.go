package syncsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Views provides the Resolver's views; a *Watcher implements it.
type Views interface {
	// View returns the current view. It may be called concurrently.
	View() View
	// Seek sets whether a source is being looked for.
	Seek(on bool)
}

// ResolverConfig configures a Resolver.
type ResolverConfig struct {
	Rules    Rules
	Observer event.Observer
	Registry prometheus.Registerer
}

// Resolver looks for sources, and keeps the denials and the times of changes. It
// should live as long as the link. Its methods may be called concurrently, but only
// one Resolve at a time.
type Resolver struct {
	cfg     ResolverConfig
	views   Views
	dial    Dialer
	metrics *metrics
	// level is Query.Level.
	level bool

	// mu guards the fields below.
	mu     sync.Mutex
	denied Denylist
	// failed are the reasons of the last denials of members that were not chosen since.
	failed  map[string]string
	history history
	current string // empty before the first
	// why is the reason of the last NoSource announced, empty once there is a source.
	why string
	// behind is since when members are only behind, zero if that is not why there is no source.
	behind time.Time
}

// behindFor is for how long members may be behind before that is announced: a source that is written to moves on between two heartbeats, and a
// link that resumes may have an entry that none of them had at the last one.
const behindFor = 5 * time.Second

// NewResolver checks cfg. It does no I/O.
func NewResolver(cfg ResolverConfig, views Views, dial Dialer) (*Resolver, error) {
	cfg.Rules.setDefaults()
	if err := cfg.Rules.validate(); err != nil {
		return nil, err
	}
	return &Resolver{cfg: cfg, views: views, dial: dial, metrics: newMetrics(cfg.Registry), denied: Denylist{}, failed: map[string]string{}}, nil
}

// Another returns a Resolver with the rules of r and its own denials, for reads concurrent with
// the oplog's: of members that need not be ahead (Query.Level). Metrics, events and the polling of members are those of the oplog's source: the new
// Resolver does not change them.
func (r *Resolver) Another() *Resolver {
	return &Resolver{cfg: ResolverConfig{Rules: r.cfg.Rules}, views: unsought{r.views}, dial: r.dial, metrics: newMetrics(nil), denied: Denylist{}, failed: map[string]string{}, level: true}
}

// unsought are Views that do not pass on that a source is sought.
type unsought struct{ Views }

// Seek implements Views.
func (unsought) Seek(bool) {}

// Source is a member to read from.
type Source struct {
	Host   string
	Caller mongo.Caller
	// Same reports whether it is the previous source again: wait for RetryInterval
	// before reading from it, to avoid a busy loop.
	Same bool
}

// Resolve finds a member that has lastFetched and the entries after it. The error
// is a *NoSourceError or a *TooStaleError, both possibly temporary, or the cause of
// ctx.
func (r *Resolver) Resolve(ctx context.Context, lastFetched oplog.OpTime) (Source, error) {
	if lastFetched.IsNull() {
		return Source{}, errors.New("syncsource: resolve a source after the null optime")
	}
	r.views.Seek(true)
	var asked []error
	var untold []string
	tried := map[string]bool{}
	for {
		if ctx.Err() != nil {
			return Source{}, context.Cause(ctx)
		}
		choice := r.choose(lastFetched)
		if tried[choice.Host] {
			// Its denial ended while other members were asked.
			choice = Choice{Reason: "every suitable member was tried, and failed", Refused: choice.Refused}
		}
		if choice.Host == "" {
			return Source{}, r.none(choice, lastFetched, asked, untold)
		}
		tried[choice.Host] = true
		caller := r.dial.Member(choice.Host)
		refused := probe(ctx, caller, lastFetched)
		// A probe that was cancelled says nothing about the member.
		if ctx.Err() != nil {
			return Source{}, context.Cause(ctx)
		}
		if refused != nil {
			if refused.err != nil {
				asked = append(asked, fmt.Errorf("%s: %w", choice.Host, refused.err))
			}
			if refused.Oldest.IsNull() {
				untold = append(untold, choice.Host)
			}
			r.deny(choice.Host, refused.Denial, refused.lasts)
			continue
		}
		source := Source{Host: choice.Host, Caller: caller, Same: r.set(choice)}
		r.views.Seek(false)
		return source, nil
	}
}

// eligible returns the members that could be read from at present, were they not denied.
func (r *Resolver) eligible() []string { return eligible(r.views.View(), r.cfg.Rules) }

// choose chooses a member from the current view.
func (r *Resolver) choose(lastFetched oplog.OpTime) Choice {
	v := r.views.View()
	r.mu.Lock()
	defer r.mu.Unlock()
	choice := Choose(v, r.query(lastFetched))
	r.metrics.candidates.Set(float64(choice.Candidates))
	return choice
}

// query returns the current Query. The caller holds mu; what the Query refers to
// does not change afterwards.
func (r *Resolver) query(lastFetched oplog.OpTime) Query {
	now := time.Now()
	r.denied.expire(now)
	denied := maps.Clone(r.denied)
	// Another copy reads from a later entry than the one that a member did not have.
	maps.DeleteFunc(denied, func(_ string, d Denial) bool {
		return !d.Oldest.IsNull() && oplog.CompareTimestamps(lastFetched.TS, d.Oldest.TS) >= 0
	})
	return Query{
		Now: now, LastFetched: lastFetched, Rules: r.cfg.Rules, Denied: denied,
		Level: r.level, Current: r.current, History: r.history,
	}
}

// set records a source and reports whether it is the same as before.
func (r *Resolver) set(choice Choice) (same bool) {
	r.mu.Lock()
	from := r.current
	r.current = choice.Host
	delete(r.failed, choice.Host)
	r.history = r.history.add(time.Now())
	r.why, r.behind = "", time.Time{}
	r.mu.Unlock()
	if from != choice.Host {
		r.metrics.changes.Inc()
	}
	r.cfg.Observer.Tell(SourceChosen{From: from, To: choice.Host, Reason: choice.Reason, Refused: choice.Refused, Equal: choice.Equal})
	return from == choice.Host
}

// none returns the error of a search without result, and announces it.
func (r *Resolver) none(choice Choice, lastFetched oplog.OpTime, asked []error, untold []string) error {
	r.mu.Lock()
	now := time.Now()
	var earliest oplog.OpTime
	for host := range r.denied {
		d, holds := r.denied.denied(host, now)
		if !holds || d.Oldest.IsNull() || oplog.CompareTimestamps(lastFetched.TS, d.Oldest.TS) >= 0 {
			continue
		}
		if earliest.IsNull() || oplog.CompareTimestamps(d.Oldest.TS, earliest.TS) < 0 {
			earliest = d.Oldest
		}
	}
	var err error = &NoSourceError{Reason: choice.Reason, Refused: choice.Refused, Asked: asked}
	reason := choice.Reason
	if !earliest.IsNull() {
		err = &TooStaleError{LastFetched: lastFetched, Earliest: earliest, Refused: choice.Refused, Untold: untold}
		reason = "the oplog has rolled over"
	}
	brief := r.brief(choice.Behind && earliest.IsNull() && len(asked) == 0, now)
	announce := reason != r.why && !brief
	if announce {
		r.why = reason
	}
	r.mu.Unlock()
	if announce {
		r.cfg.Observer.Tell(NoSource{Reason: reason, Refused: choice.Refused})
	}
	return err
}

// brief reports whether members are only behind, and have not been for long: the next heartbeats are waited for without a word. The caller
// holds mu.
func (r *Resolver) brief(behind bool, now time.Time) bool {
	switch {
	case !behind:
		r.behind = time.Time{}
	case r.behind.IsZero():
		r.behind = now
	}
	return behind && now.Sub(r.behind) < behindFor
}

// Deny excludes a member from the choice for a while (see the Deny constants). It
// replaces an earlier denial. The reason completes a sentence that starts with the
// member's name.
func (r *Resolver) Deny(host string, lasts time.Duration, reason string) {
	r.deny(host, Denial{Reason: reason}, lasts)
}

// DenyStale denies a member whose oplog, while it was read, turned out to begin at
// oldest, after the last fetched entry.
func (r *Resolver) DenyStale(host string, oldest oplog.OpTime) {
	r.deny(host, Denial{Reason: "has an oplog that begins at " + oldest.String(), Oldest: oldest}, DenyFetched)
}

func (r *Resolver) deny(host string, d Denial, lasts time.Duration) {
	view := r.views.View()
	r.mu.Lock()
	d.Until = time.Now().Add(lasts)
	r.denied[host], r.failed[host] = d, d.Reason
	maps.DeleteFunc(r.failed, func(host, _ string) bool { _, is := view.find(host); return !is })
	r.mu.Unlock()
	r.metrics.denials.Inc()
	r.cfg.Observer.Log(slog.LevelWarn, "source denied", slog.String(keyHost, host), slog.Duration(keyFor, lasts), slog.String(keyReason, d.Reason))
}

// OnReply reports whether to leave the source after a successful reply.
func (r *Resolver) OnReply(lastFetched oplog.OpTime, said SourceState) Verdict {
	return r.judge(lastFetched, func(v View, q Query) Verdict {
		if verdict := shouldChange(v, q, said); verdict.Change {
			return verdict
		}
		return pingShouldChange(v, q)
	})
}

// OnError reports whether to leave the source after a failed read; otherwise the
// read is retried.
func (r *Resolver) OnError(lastFetched oplog.OpTime) Verdict {
	return r.judge(lastFetched, shouldChangeOnError)
}

func (r *Resolver) judge(lastFetched oplog.OpTime, ask func(v View, q Query) Verdict) Verdict {
	v := r.views.View()
	r.mu.Lock()
	q := r.query(lastFetched)
	r.mu.Unlock()
	verdict := ask(v, q)
	// Before the first choice there is no source to leave.
	if verdict.Change && q.Current != "" {
		r.cfg.Observer.Log(slog.LevelInfo, "leaving the source", slog.String(keyHost, q.Current), slog.String(keyReason, verdict.Reason))
	}
	return verdict
}

// Status is a Resolver's state.
type Status struct {
	// Current is the source, empty before the first.
	Current string
	// Denied are the denials in force.
	Denied Denylist
	// Failed are the reasons of the last denials of members that were not chosen since, also if those have ended.
	Failed map[string]string
}

// Status returns the current state.
func (r *Resolver) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied.expire(time.Now())
	return Status{Current: r.current, Denied: maps.Clone(r.denied), Failed: maps.Clone(r.failed)}
}
