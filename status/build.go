package status

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Snapshot returns the current state of the link.
func (t *Tracker) Snapshot() Snapshot {
	var p monitor.Snapshot
	if live := t.follows(); live != nil {
		p = live() // it has locks of its own
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	point := p.Reached(t.point)
	s := Snapshot{
		Version: t.cfg.Version, StartedAt: t.started.UTC(), At: now.UTC(),
		Link: t.cfg.Link, State: string(p.State), Since: p.Since.UTC(), Reason: p.Reason,
		Attempts: p.Attempts, Term: p.Term,
		OpTimes: OpTimes{
			Fetched:         opTime(p.Fetched, 0),
			Applied:         opTime(p.Progress.Applied, p.Progress.AppliedWall),
			Durable:         opTime(p.Progress.Durable, p.Progress.DurableWall),
			LogApplied:      opTime(p.Log.Applied, p.Log.AppliedWall),
			SourceNewest:    opTime(p.Source.Applied, 0),
			SourceCommitted: opTime(p.Source.Committed, int64(p.Source.CommittedWall)),
			CopiedUntil:     opTime(p.CopiedUntil, 0),
		},
		Buffer: Buffer{
			Bytes: p.Buffer.Buffered, LimitBytes: p.Buffer.Limit, Count: p.Buffer.Replies, Full: p.Buffer.Waiting,
		},
		Checkpoint: Checkpoint{Applied: opTime(point.Applied, 0), FetchFrom: opTime(t.point.FetchFrom, 0), At: known(t.at)},
		Feedback:   t.report,
		Waits:      waitsOf(p.Waits),
		Problems:   t.problemList(),
		metaDB:     t.cfg.MetaDB,
	}
	s.DelaySeconds = seconds(p.Delay)
	if s.State == "" {
		s.State, s.Since = string(monitor.Starting), s.StartedAt
	}
	if !p.Buffer.Oldest.IsZero() {
		s.Buffer.OldestAgeSeconds = seconds(now.Sub(p.Buffer.Oldest))
	}
	if p.LastError != "" {
		s.LastError = &Failure{At: p.LastErrorAt.UTC(), Error: p.LastError}
	}
	addLease(&s, &p)
	addCut(&s, &p, now)
	addGuard(&s, &p)
	t.addVerified(&s)
	addDeferred(&s, &p)
	t.addCopy(&s, &p, now)
	t.addWindow(&s, &p, now)
	addControl(&s, &p)
	t.addSource(&s, &p, now)
	s.silent, s.silentAfter, s.blocked = t.silence(&s), cmp.Or(p.SilentAfter, silentSoon), p.Blocked
	s.targetSilent, s.loginRefused = p.TargetSilent, p.LoginRefused
	t.addLag(&s, &p, now)
	t.addTarget(&s, &p)
	t.addApplier(&s, &p)
	t.addFigures(&s, &p, now)
	s.failing, s.stands = t.failing, p.Stands
	t.judge(&s)
	if s.leads() {
		ready := s.Readiness(ReadinessLimits{})
		s.ReadyToCutover = &ready
	}
	return s
}

// addLease adds the lease, if it has an end.
func addLease(s *Snapshot, p *monitor.Snapshot) {
	if p.Process == "" {
		return
	}
	s.Lease = &Lease{
		Role: string(p.Role()), Process: p.Process, BlindSince: known(p.BlindSince),
		Takeovers: p.Lease.Takeovers, FencedWrites: p.Lease.Fenced, Renewals: p.Lease.Renewals, RenewalFailures: p.Lease.Failures,
	}
	if took := seconds(p.Lease.LastRenewal); p.Lease.Renewals > 0 {
		s.Lease.LastRenewalSeconds = &took
	}
	switch l := p.Leader; {
	case l != nil:
		s.Lease.Leader, s.Lease.Why = l.Process, l.Why
		if l.Renews {
			s.Lease.Since, s.Lease.Until = known(l.Since), known(l.Until)
		}
	case p.Lease.Left > 0:
		left := seconds(p.Lease.Left)
		s.Lease.SecondsLeft = &left
	}
}

// addLag adds the lag of the target, if both ends are known, and as of when it is exact. What
// the source said long ago says nothing of what it has now, nor does a member that knows no primary: the lag is not known then, nor
// that everything is applied. That something is not, and since when, remains known.
func (t *Tracker) addLag(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	if p.HeardAt.IsZero() || p.Log.Applied.IsNull() {
		return
	}
	lag, age := seconds(p.Lag), 0.0
	// For a copy that is not consistent it is the lag of the applied log.
	applied := p.Progress.Applied
	if applied.IsNull() {
		applied = p.Log.Applied
	}
	behind := p.Source.Committed.After(applied) || p.Source.Behind > 0
	if behind {
		age = seconds(p.Lag + now.Sub(p.HeardAt))
	}
	told := p.HeardAt // as of when the source has said what it has
	if !p.NoPrimarySince.IsZero() {
		told = p.NoPrimarySince
		s.noPrimary = now.Sub(told)
	}
	if s.Consistent && !p.NoPrimaryYet {
		// By one clock: the wall clock of an entry is another one.
		s.ExactAt = known(told.Add(-p.Lag))
	}
	old := now.Sub(told) > s.silentAfter || p.NoPrimaryYet
	if !old {
		s.LagSeconds = &lag
	}
	if !old || behind {
		s.AgeOfOldestUnappliedSeconds = &age
	}
}

func (t *Tracker) addSource(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	s.Source = Source{
		Set: p.SourceSet, Host: p.SourceHost, Why: t.why, HeardAt: known(p.HeardAt),
		Refused: make([]Refused, 0, len(t.refused)), Denied: make([]Denied, 0, len(p.Resolver.Denied)),
	}
	s.Cutover, s.Back = t.cutover.shown(now), NewBack(p.Back)
	if !t.blockAsked.IsZero() && now.Sub(t.blockAsked) <= staleAnswers*askEvery {
		on := t.blocked
		s.Source.WritesBlocked = &on
	}
	if !p.HeardAt.IsZero() {
		age := seconds(now.Sub(p.HeardAt))
		s.Source.DataAgeSeconds = &age
	}
	for _, r := range t.refused {
		s.Source.Refused = append(s.Source.Refused, Refused{r.Host, r.Reason})
	}
	for host, d := range p.Resolver.Denied {
		s.Source.Denied = append(s.Source.Denied, Denied{host, d.Reason, d.Until.UTC()})
	}
	slices.SortFunc(s.Source.Denied, func(a, b Denied) int { return cmp.Compare(a.Host, b.Host) })
}

func (t *Tracker) addTarget(s *Snapshot, p *monitor.Snapshot) {
	s.Target = Target{Set: t.targetSet, Primary: t.targetHost, Hosts: slices.Clone(p.TargetHosts)}
	if t.cfg.TargetPrimary != nil {
		s.Target.Primary, _ = t.cfg.TargetPrimary()
	}
	if s.Target.Hosts == nil {
		s.Target.Hosts = []string{}
	}
}

func (t *Tracker) addApplier(s *Snapshot, p *monitor.Snapshot) {
	c := p.Applier
	s.Applier = Applier{
		Writers: c.Writers, OpsApplied: p.Progress.Ops, Flushes: c.Flushes, Coalesced: c.Coalesced,
		Commands: c.Commands, Barriers: c.Barriers, Divergences: c.Divergences,
		DeletesEmpty: c.DeletesEmpty, Retries: c.Retries, Skipped: c.Skipped,
	}
	for _, k := range c.KeptBack {
		s.KeptBack = append(s.KeptBack, KeptBack{Namespace: string(k.NS), Commit: opTime(k.Commit, 0), Since: k.Since.UTC()})
	}
	if n := len(t.rate); n >= 2 {
		first, last := t.rate[0], t.rate[n-1]
		perSecond := round(max(0, float64(last.ops-first.ops)/last.at.Sub(first.at).Seconds()))
		s.Applier.OpsPerSecond = &perSecond
	}
}

// waitsOf returns the JSON form of the commands that wait.
func waitsOf(list []mongo.Wait) []Wait {
	out := make([]Wait, len(list))
	for i, w := range list {
		out[i] = Wait{w.Side, w.Host, w.Command, w.Namespace, w.Since.UTC(), w.For, w.Noted}
	}
	return out
}

// silence returns the time since the source last answered, in any attempt, or was last not
// asked. The tracker is locked.
func (t *Tracker) silence(s *Snapshot) time.Duration {
	heard := t.heard
	if at := s.Source.HeardAt; at != nil && at.After(heard) {
		heard = *at
	}
	return max(0, s.At.Sub(heard))
}

// problemList returns the problems, the newest first.
func (t *Tracker) problemList() []Problem {
	list := make([]Problem, 0, len(t.problems))
	for _, p := range t.problems {
		// Fields are made again for each event, so that they can be shared.
		q := *p
		q.FirstAt, q.LastAt = p.FirstAt.UTC(), p.LastAt.UTC()
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b Problem) int {
		return cmp.Or(b.LastAt.Compare(a.LastAt), strings.Compare(a.Message, b.Message))
	})
	return list
}

// known returns nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// seconds is d to the millisecond.
func seconds(d time.Duration) float64 { return round(d.Seconds()) }

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// addDeferred adds the options deferred until cutover. A process that does not lead does not know.
func addDeferred(s *Snapshot, p *monitor.Snapshot) {
	if p.Deferred == nil || !s.leads() {
		return
	}
	s.Deferred = &Deferred{}
	for i := range p.Deferred {
		if p.Deferred[i].Index == "" {
			s.Deferred.Collections++
		} else {
			s.Deferred.Indexes++
		}
	}
}

func addCut(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	s.NoCut, s.CutIntervalSeconds = p.NoCut(), seconds(p.CutInterval)
	if c := p.Cut; c != nil {
		s.Cut = &Cut{
			Source: opTime(c.Source, c.SourceWall), Target: ClusterTime{T: c.Target.T, I: c.Target.I, Wall: c.At.UTC()},
			AgeSeconds: seconds(now.Sub(c.At)),
		}
	}
}
