package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// behind is by how much a link that was steady may lag before it counts as
// catching up again.
const behind = 10 * time.Second

// Snapshot is what a link is doing, at one moment.
type Snapshot struct {
	Link   string
	State  State
	Reason string
	Since  time.Time
	// Attempts counts the holds of the link since the start, Term is the last.
	Attempts int
	Term     int64
	// Progress is up to where everything that the link mirrors is in the target:
	// its optimes are null while a copy is not consistent, and stay where a
	// collection was left out. It is what may be reported; see checkpoint.Gaps, which
	// says what it lacks of Log.
	Progress checkpoint.Progress
	checkpoint.Gaps
	// Log is how far the log was applied, whatever it was applied to: where the link
	// goes on.
	Log checkpoint.Progress
	// Copy is the link's copy, nil where it has none.
	Copy *CopySnapshot
	// Lacking is what the target does not have at all, as it was read last.
	Lacking ddl.Lacking
	// Window is the source's oplog, as far as it is known.
	Window Window
	// Fetched is the last entry that was read, at FetchedAt.
	Fetched   oplog.OpTime
	FetchedAt time.Time
	// SourceSet and SourceHost are the set, and the member that is read, empty
	// where none is. Source is what it said last, at HeardAt.
	SourceSet  string
	SourceHost string
	Source     fetcher.Metadata
	HeardAt    time.Time
	// Lag is by how much the target is behind what the source has committed,
	// by the source's clock; 0 where nothing is missing. While a collection is left
	// out that is by how much Progress is, while a copy is not consistent by how much
	// Log is.
	Lag time.Duration

	Buffer   buffer.Stats
	Applier  applier.Stats
	Resolver syncsource.Status
	View     syncsource.View
	// TargetHosts are the target's members.
	TargetHosts []string
	// Waits are what has waited for longer than 5 s, the longest first.
	Waits []mongo.Wait
	// LastError is why the last attempt ended, empty where none has.
	LastError   string
	LastErrorAt time.Time
}

// live is what of a Snapshot changes from entry to entry.
type live struct {
	attempt  *attempt
	attempts int
	term     int64
	window   Window
	// gaps are what the target lacks at progress. Its Copying tells that the target
	// is not consistent yet.
	gaps checkpoint.Gaps
	// lacking is what was read last of what the target does not have.
	lacking ddl.Lacking
	// resting tells that no attempt is under way: what the source says is of no
	// consequence.
	resting bool
	// progress is how far the log was applied.
	progress  checkpoint.Progress
	fetched   oplog.OpTime
	fetchedAt time.Time
	set       string
	host      string
	caller    mongo.Caller
	// meta is that of the reply number replies of the fetch stage, which came at heard.
	meta    fetcher.Metadata
	heard   time.Time
	replies int64
	// caughtUp is when the source was last known to have nothing that was not
	// applied, durable when everything applied was last found durable, or more of
	// it was. Both are null before the first time in an attempt.
	caughtUp, durable time.Time
	err               string
	errAt             time.Time
}

// Snapshot returns what the link is doing now.
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

// lag is what Snapshot.Lag says. After an idle time the clocks of two entries are
// far apart although the later one has only just come: what was applied when the
// source had no more counts as up to date until then.
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

// leftOutWall is the wall time of the entry since which something is left out.
func (l *live) leftOutWall() int64 {
	wall := l.progress.AppliedWall
	for i := range l.gaps.LeftOut {
		wall = min(wall, l.gaps.LeftOut[i].Wall)
	}
	return wall
}

// isCaughtUp tells whether everything is applied that the source was heard to have
// committed.
func (l *live) isCaughtUp() bool { return !l.meta.Committed.After(l.progress.Applied) }

// within returns a difference of two clocks in milliseconds, but no more than has
// passed since a time, if there was one.
func within(since time.Time, millis int64) time.Duration {
	d := max(0, time.Duration(millis)*time.Millisecond)
	if since.IsZero() {
		return d
	}
	return min(d, time.Since(since))
}

// mostLag is by how much the target may be behind: by what is known, and by what
// the source did since it was heard last, as that is because nothing more is taken
// from it.
func (l *live) mostLag() time.Duration { return l.lag() + time.Since(l.heard) }

// undurable is by how much what is applied is ahead of what a majority of the
// target has.
func (l *live) undurable() time.Duration {
	if !l.progress.Applied.After(l.progress.Durable) {
		return 0
	}
	return within(l.durable, l.progress.AppliedWall-l.progress.DurableWall)
}

// begin notes a new attempt.
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

// beginCopying notes a new attempt that copies.
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

// beginLive notes what all attempts begin with. mu is held.
func (p *Pipeline) beginLive(st checkpoint.State, src checkpoint.Source, start checkpoint.Progress) {
	l := &p.live
	l.progress, l.term = start, st.Term
	l.attempts++
	l.resting = false
	l.set = src.SetName
	l.fetched = oplog.OpTime{}
	l.heard, l.caughtUp, l.durable = time.Time{}, time.Time{}, time.Time{}
}

// consistent notes that the copy is consistent from now on.
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

// moved notes progress.
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

// isCopying tells whether the target is not consistent yet.
func (p *Pipeline) isCopying() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.gaps.Copying
}

// failed notes why an attempt ended. It returns the entry that it has read last, null
// for none.
func (p *Pipeline) failed(err error) (fetched oplog.OpTime) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live.err, p.live.errAt = err.Error(), time.Now()
	p.live.resting = true
	return p.live.fetched
}

// fetching is a fetch stage that the pipeline follows.
type fetching struct {
	*fetcher.Fetcher
	p *Pipeline
}

// Run runs the stage and records its status whenever that changes. It returns nil when
// the run is to be drained.
func (f *fetching) Run(ctx context.Context, out chan<- oplog.Reply) error {
	p := f.p
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
	err := f.Fetcher.Run(ctx, out)
	end(nil)
	watch.Wait()
	p.hear(f.Status())
	if errors.Is(err, errDrain) {
		return nil
	}
	return err
}

// hear records what the fetch stage is doing.
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
		// What is stale remains so until a member has the position.
		p.state.set(CatchingUp, st.Why)
	}
}

// judgeState tells catching up from being steady, by what the source said last.
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

// sourceNow is src with what was learned of the member since.
func (p *Pipeline) sourceNow(src checkpoint.Source) checkpoint.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live.meta.Host != "" {
		src.Host, src.RBID = p.live.meta.Host, p.live.meta.RBID
	}
	return src
}

// askSource asks the source which set it is: any member that answers, as an
// attempt does not need the primary.
func (p *Pipeline) askSource(ctx context.Context) (checkpoint.Source, error) {
	view := p.watcher.View()
	for i := range view.Members {
		m := &view.Members[i]
		if !m.Up() || m.Arbiter || m.Stranger {
			continue
		}
		caller, err := p.source.Member(m.Host)
		if err != nil {
			continue // the set knows better than the view
		}
		src, err := sourceOf(ctx, caller)
		if err == nil || ctx.Err() != nil {
			return src, err
		}
	}
	return sourceOf(ctx, p.source)
}

// sourceOf asks a member which set it is of.
func sourceOf(ctx context.Context, source mongo.Caller) (checkpoint.Source, error) {
	src := checkpoint.Source{RBID: -1}
	reply, err := replset.Hello(ctx, source)
	if err != nil {
		return src, err
	}
	name, ok := reply.Lookup("setName").StringValueOK()
	if !ok {
		return src, errors.New("it is no member of a replica set, so it has no oplog: start it as a set of one")
	}
	src.SetName = name
	src.Host, _ = reply.Lookup("me").StringValueOK()
	if id, err := reply.LookupErr("$replData", "replicaSetId"); err == nil {
		src.ReplicaSetID = id
	}
	if rbid, ok := replset.RollbackID(reply); ok {
		src.RBID = rbid
	}
	return src, nil
}

// internalApply tells whether the target's primary can apply deltas itself: 6.0
// and newer can, unless something keeps clients from it. So it is tried, on a
// document that does not exist. After a failover the question is asked again.
func (p *Pipeline) internalApply(ctx context.Context) (bool, error) {
	delta := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 1}}}}}}
	stage := bson.D{{Key: "$_internalApplyOplogUpdate", Value: bson.D{{Key: "oplogUpdate", Value: delta}}}}
	body, err := bson.Marshal(bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "nobody", Value: "has this"}}}}},
		{Key: "u", Value: bson.A{stage}},
	}}}})
	if err != nil {
		return false, fmt.Errorf("build an update: %w", err)
	}
	reply, err := mongo.Twice(p.target).Call(ctx, mongo.Command{DB: p.cfg.MetaDB, Body: body})
	if k := servererr.Classify(err); k != servererr.None && !k.Passes() {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the target whether it can apply deltas: %w", err)
	}
	refused, err := mongo.WriteErrors(reply)
	return err == nil && len(refused) == 0, err
}
