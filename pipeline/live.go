package pipeline

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// behind is the lag at which a link that was steady counts as catching up again.
const behind = 10 * time.Second

// Snapshot is the state of a link at one moment.
type Snapshot struct {
	Link   string
	State  State
	Reason string
	Since  time.Time
	// Attempts counts the attempts since the start, Term is the term of the last one.
	Attempts int
	Term     int64
	// Progress is the position up to which everything that the link mirrors is in the
	// target. Its optimes are null while a copy is not consistent, and do not advance
	// while a collection is left out. It is the progress that may be reported;
	// checkpoint.Gaps says how it differs from Log.
	Progress checkpoint.Progress
	checkpoint.Gaps
	// Log is the progress of applying the oplog, whatever it was applied to: where the
	// link continues.
	Log checkpoint.Progress
	// Copy is the link's copy, nil if it has none.
	Copy *CopySnapshot
	// Lacking lists the views and indexes that the target does not have at all, as read
	// last.
	Lacking ddl.Lacking
	// Window is the source's oplog, as far as it is known.
	Window Window
	// Fetched is the last entry that was read, at FetchedAt.
	Fetched   oplog.OpTime
	FetchedAt time.Time
	// SourceSet and SourceHost are the set and the member that is read, empty if none
	// is. Source is the metadata of its last reply, received at HeardAt.
	SourceSet  string
	SourceHost string
	Source     fetcher.Metadata
	HeardAt    time.Time
	// Lag is how far the target is behind the source's commit point, by the source's
	// clock; 0 if nothing is missing. It is the lag of Progress while a collection is
	// left out, and of Log while a copy is not consistent.
	Lag time.Duration

	Buffer   buffer.Stats
	Applier  applier.Stats
	Resolver syncsource.Status
	View     syncsource.View
	// TargetHosts are the target's members.
	TargetHosts []string
	// Waits are the commands that have waited for longer than 5 s, the longest first.
	Waits []mongo.Wait
	// LastError is why the last attempt ended, empty if none has.
	LastError   string
	LastErrorAt time.Time
}

// live is the part of a Snapshot that changes from entry to entry.
type live struct {
	attempt  *attempt
	attempts int
	term     int64
	window   Window
	// gaps are what the target lacks at progress. Its Copying means that the target is
	// not consistent yet.
	gaps checkpoint.Gaps
	// lacking is the last value read for Snapshot.Lacking.
	lacking ddl.Lacking
	// resting means that no attempt is running: the source's state does not matter.
	resting bool
	// progress is how far the oplog was applied.
	progress  checkpoint.Progress
	fetched   oplog.OpTime
	fetchedAt time.Time
	set       string
	host      string
	caller    mongo.Caller
	// meta is the metadata of the fetch stage's reply number replies, received at
	// heard.
	meta    fetcher.Metadata
	heard   time.Time
	replies int64
	// caughtUp is when the source was last known to have no unapplied entries. durable
	// is when everything applied was last found durable, or lastDurable last advanced.
	// Both are zero until then in each attempt.
	caughtUp, durable time.Time
	err               string
	errAt             time.Time
}

// Snapshot returns the present state of the link.
func (p *Pipeline) Snapshot() Snapshot {
	p.mu.Lock()
	l := p.live
	p.mu.Unlock()
	s := Snapshot{
		Link: p.cfg.Link, Attempts: l.attempts, Term: l.term, Window: l.window,
		Progress: l.gaps.Reached(l.progress), Gaps: l.gaps, Log: l.progress, Lacking: l.lacking,
		Fetched: l.fetched, FetchedAt: l.fetchedAt, SourceSet: l.set, SourceHost: l.host, Source: l.meta, HeardAt: l.heard,
		Lag: l.lag(), LastError: l.err, LastErrorAt: l.errAt,
		Resolver: p.resolver.Status(), View: p.watcher.View(), TargetHosts: p.target.Hosts(),
	}
	s.State, s.Reason, s.Since = p.state.get()
	if s.Waits = p.waiting(); !s.State.ended() {
		reasons := append(nonEmpty(s.Reason), nonEmpty(p.resyncs.Postponed())...)
		if len(s.Waits) > 0 {
			reasons = append(reasons, s.Waits[0].String())
		}
		s.Reason = strings.Join(reasons, "; ")
	}
	if l.attempt != nil {
		s.Applier = l.attempt.applier.Stats()
		if a := l.attempt; a.spool != nil {
			s.Buffer = a.spool.Stats()
		} else {
			s.Buffer = a.queue.Stats()
		}
	}
	if c := p.shown.Load(); c != nil {
		s.Copy = c.snapshot()
	}
	return s
}

// lag computes Snapshot.Lag. After an idle time, the wall clocks of two entries are far
// apart although the later one has only just been written. So the target counts as up
// to date until the last time that the source had no more entries.
func (l *live) lag() time.Duration {
	if l.heard.IsZero() {
		return 0
	}
	if len(l.gaps.LeftOut) > 0 && !l.gaps.Copying {
		if at := l.gaps.Reached(l.progress); at.Applied.Before(l.progress.Applied) {
			return max(0, time.Duration(int64(l.meta.CommittedWall)-l.leftOutWall())*time.Millisecond)
		}
	}
	if l.isCaughtUp() {
		return 0
	}
	return within(l.caughtUp, int64(l.meta.CommittedWall)-l.progress.AppliedWall)
}

// leftOutWall returns the wall time of the entry since which something is left out.
func (l *live) leftOutWall() int64 {
	wall := l.progress.AppliedWall
	for i := range l.gaps.LeftOut {
		wall = min(wall, l.gaps.LeftOut[i].Wall)
	}
	return wall
}

// isCaughtUp reports whether everything is applied that the source has reported as
// committed.
func (l *live) isCaughtUp() bool { return !l.meta.Committed.After(l.progress.Applied) }

// within returns a difference of two clocks, given in milliseconds, but no more than
// the time that has passed since a moment, if there was one.
func within(since time.Time, millis int64) time.Duration {
	d := max(0, time.Duration(millis)*time.Millisecond)
	if since.IsZero() {
		return d
	}
	return min(d, time.Since(since))
}

// mostLag returns the largest lag that the target can have: the known lag, and the time
// since the source's last reply, as no reply may be due to back-pressure.
func (l *live) mostLag() time.Duration { return l.lag() + time.Since(l.heard) }

// undurable is how far the applied operations are ahead of the majority-committed ones
// of the target.
func (l *live) undurable() time.Duration {
	if !l.progress.Applied.After(l.progress.Durable) {
		return 0
	}
	return within(l.durable, l.progress.AppliedWall-l.progress.DurableWall)
}

// begin records the start of an attempt.
func (p *Pipeline) begin(a *attempt, st checkpoint.State, start checkpoint.Progress) {
	p.mu.Lock()
	p.live.attempt = a
	p.beginLive(st, a.source, start)
	p.mu.Unlock()
	before := p.shown.Swap(nil)
	if st.Copy == nil {
		return
	}
	p.shown.Store(&copyState{copy: *st.Copy, spool: a.spool})
	if before != nil && before.copy.Phase != checkpoint.Copied && st.Copy.Phase == checkpoint.Copied {
		p.tellConsistent(*st.Copy) // the last attempt did not learn that this was recorded
	}
}

// beginCopying records the start of an attempt that copies.
func (p *Pipeline) beginCopying(s *initialsync.Sync, st checkpoint.State, src checkpoint.Source) {
	p.mu.Lock()
	p.live.attempt = nil
	p.beginLive(st, src, checkpoint.Progress{
		Applied: st.Applied, AppliedWall: st.AppliedWall, FetchFrom: st.FetchFrom,
		Durable: st.Applied, DurableWall: st.AppliedWall,
	})
	p.mu.Unlock()
	p.shown.Store(&copyState{copy: *st.Copy, sync: s, spool: p.log.Spool()})
	p.state.set(InitialSync, "")
}

// beginLive records the start of any attempt. mu is held.
func (p *Pipeline) beginLive(st checkpoint.State, src checkpoint.Source, start checkpoint.Progress) {
	l := &p.live
	l.progress, l.term = start, st.Term
	l.attempts++
	l.resting = false
	l.set = src.SetName
	l.fetched = oplog.OpTime{}
	l.heard, l.caughtUp, l.durable = time.Time{}, time.Time{}, time.Time{}
}

// consistent records that the copy is consistent from now on.
func (p *Pipeline) consistent(c checkpoint.Copy) {
	p.mu.Lock()
	p.live.gaps.Copying = false
	p.mu.Unlock()
	if old := p.shown.Load(); old != nil {
		now := *old
		now.copy = c
		p.shown.Store(&now)
	}
}

// moved records progress.
func (p *Pipeline) moved(progress checkpoint.Progress) {
	p.mu.Lock()
	l := &p.live
	if !l.progress.Applied.After(l.progress.Durable) || progress.Durable.After(l.progress.Durable) {
		l.durable = time.Now()
	}
	l.progress = progress
	if !l.heard.IsZero() && l.isCaughtUp() {
		l.caughtUp = time.Now()
	}
	p.mu.Unlock()
	p.judgeState()
}

// isCopying reports whether the target is not consistent yet.
func (p *Pipeline) isCopying() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.gaps.Copying
}

// failed records why an attempt ended. It returns the last entry that the attempt read,
// null if none.
func (p *Pipeline) failed(err error) (fetched oplog.OpTime) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live.err, p.live.errAt = err.Error(), time.Now()
	p.live.resting = true
	return p.live.fetched
}

// fetch runs a fetch stage and records its status whenever that changes. It returns nil
// when the run is to be drained.
func (p *Pipeline) fetch(ctx context.Context, f *fetcher.Fetcher, out chan<- oplog.Reply) error {
	p.mu.Lock()
	p.live.replies = 0
	p.mu.Unlock()
	watching, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			changed := f.Changed()
			p.hear(f.Status())
			select {
			case <-changed:
			case <-watching.Done():
				return
			}
		}
	})
	err := f.Run(ctx, out)
	end(nil)
	watch.Wait()
	p.hear(f.Status())
	if errors.Is(err, errDrain) {
		return nil
	}
	return err
}

// hear records the status of the fetch stage.
func (p *Pipeline) hear(st fetcher.Status) {
	p.mu.Lock()
	l := &p.live
	l.host, l.caller = st.Host, st.Caller
	l.fetched, l.fetchedAt = st.Last, st.LastAt
	answered := st.Replies != l.replies
	if answered {
		// It answers as soon as it has something: until now it had not.
		if !l.heard.IsZero() && l.isCaughtUp() {
			l.caughtUp = st.HeardAt
		}
		l.replies, l.meta, l.heard = st.Replies, st.Metadata, st.HeardAt
	}
	resting, now := l.resting, *l
	p.mu.Unlock()
	state, _, _ := p.state.get()
	switch {
	case st.Why == "" && answered:
		p.judge(now) // also if the stage has ended since that reply
	case st.Why == "":
		p.judgeState()
	case st.Pinned:
		if state == InitialSync && !resting {
			p.state.set(InitialSync, st.Why)
		}
	case state == Starting && (resting || !st.Stale):
		p.state.set(Starting, st.Why)
	case st.Stale:
		p.state.set(Stale, st.Why)
	case state != Stale:
		// A stale link remains stale until a member has the position.
		p.state.set(CatchingUp, st.Why)
	}
}

// judgeState decides between catching up and steady, by the source's last reply.
func (p *Pipeline) judgeState() {
	p.mu.Lock()
	l := p.live
	p.mu.Unlock()
	if l.host != "" { // else nothing is known of what the source has now
		p.judge(l)
	}
}

// judge is judgeState by l.
func (p *Pipeline) judge(l live) {
	if l.resting || l.heard.IsZero() {
		return
	}
	now, _, _ := p.state.get()
	switch {
	case now == Stopped || now == Failed:
	case l.gaps.Copying || l.progress.Applied.Before(l.gaps.CopiedUntil):
		p.state.set(InitialSync, "")
	case len(l.gaps.LeftOut) > 0:
		p.state.set(CatchingUp, resync.Describe(l.gaps.LeftOut))
	case l.undurable() > behind:
		p.state.set(CatchingUp, "no majority of the target has what was applied")
	case l.isCaughtUp() || p.cfg.Delay > 0 && l.mostLag() <= p.cfg.Delay+behind:
		p.state.set(Steady, "")
	case now != Steady || l.mostLag() > p.cfg.Delay+behind:
		p.state.set(CatchingUp, "")
	}
}

// sourceNow returns src with the newer information about the member.
func (p *Pipeline) sourceNow(src checkpoint.Source) checkpoint.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live.meta.Host != "" {
		src.Host, src.RBID = p.live.meta.Host, p.live.meta.RBID
	}
	return src
}
