package monitor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// behind is the lag at which a link that was steady counts as catching up again.
const behind = 10 * time.Second

// silentSlack is how much longer than it may wait the source may take to answer, without
// being silent.
const silentSlack = 3 * time.Second

// silentAfter is how long the source may be silent.
func (m *Monitor) silentAfter() time.Duration { return m.cfg.Await + silentSlack }

// isSilent reports whether the source has not answered for longer than an idle one takes. A
// source that is not asked is not silent. mu is held.
func (m *Monitor) isSilent() bool {
	return m.source.Blocked.IsZero() && time.Since(m.source.HeardAt) > m.silentAfter()
}

// Fetch runs a fetch stage and records its status whenever that changes.
func (m *Monitor) Fetch(ctx context.Context, f *fetcher.Fetcher, out chan<- oplog.Reply) error {
	m.mu.Lock()
	m.source.Replies = 0
	m.mu.Unlock()
	watching, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			changed := f.Changed()
			m.heard(f.Status())
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
	m.heard(f.Status())
	return err
}

// heard records the status of the fetch stage.
func (m *Monitor) heard(st fetcher.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	answered := st.Replies != m.source.Replies
	switch {
	case !answered:
		st.Metadata, st.HeardAt = m.source.Metadata, m.source.HeardAt
	case !m.source.HeardAt.IsZero() && m.isCaughtUp():
		// It answers as soon as it has something: until now it had not.
		m.caughtUp = st.HeardAt
	}
	if answered {
		m.notePrimary(&st)
	}
	m.source = st
	m.judgeStatus(answered)
}

// judgeStatus chooses the state by the status of the fetch stage. mu is held.
func (m *Monitor) judgeStatus(answered bool) {
	switch st := &m.source; {
	case st.Why == "":
		if answered || st.Host != "" { // also if the stage has ended since that reply
			m.judge()
		}
	case m.gaps.Copying:
		if m.state == InitialSync {
			m.set(InitialSync, st.Why)
		}
	case m.state == Starting && (m.resting || !st.Stale):
		m.set(Starting, st.Why)
	case st.Stale:
		m.set(Stale, st.Why)
	case m.state != Stale:
		// A stale link remains stale until a member has the position.
		m.set(CatchingUp, st.Why)
	}
}

// notePrimary records since when the member that is read knows no primary. mu is held.
func (m *Monitor) notePrimary(st *fetcher.Status) {
	switch {
	case !st.Metadata.NoPrimary:
		m.noPrimarySince, m.noPrimaryYet = time.Time{}, false
	case m.noPrimarySince.IsZero() && m.source.HeardAt.IsZero():
		m.noPrimarySince, m.noPrimaryYet = st.HeardAt, true
	case m.noPrimarySince.IsZero():
		m.noPrimarySince = m.source.HeardAt
	}
}

// notice looks for changes by the passing of time alone: a source that is silent.
func (m *Monitor) notice() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == Steady && m.isSilent() {
		m.judge()
	}
}

// judge chooses between initial sync, catching up and steady, by the source's last reply.
// mu is held.
func (m *Monitor) judge() {
	if m.resting || m.source.HeardAt.IsZero() {
		return
	}
	switch {
	case m.isCopying():
		m.set(InitialSync, "")
	case len(m.gaps.LeftOut) > 0:
		m.set(CatchingUp, resync.Describe(m.gaps.LeftOut))
	case m.undurable() > behind:
		m.set(CatchingUp, "no majority of the target has the applied entries")
	case m.isSilent():
		m.set(CatchingUp, "the source does not answer: what it has written since its last reply is not known")
	case m.isBehind():
		m.set(CatchingUp, fmt.Sprintf("the member of the source that is read, %s, is %s behind what another member has", m.source.Metadata.Host, m.source.Metadata.Behind.Round(time.Second)))
	case m.isCaughtUp() || m.cfg.Delay > 0 && m.mostLag() <= m.cfg.Delay+behind:
		m.set(Steady, "")
	case m.state != Steady || m.mostLag() > m.cfg.Delay+behind:
		m.set(CatchingUp, "")
	}
}

// isCopying reports whether the target lacks a part of a copy. mu is held.
func (m *Monitor) isCopying() bool {
	return m.gaps.Copying || m.progress.Applied.Before(m.gaps.CopiedUntil)
}

// leaveInitialSync ends that state once the copy is consistent: the source's next reply, which
// judge waits for, may take as long as the source writes nothing.
func (m *Monitor) leaveInitialSync() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != InitialSync || m.isCopying() {
		return
	}
	m.judgeStatus(false)
	if m.state == InitialSync {
		m.set(CatchingUp, "the source has not answered since the copy became consistent")
	}
}

// lag returns Snapshot.Lag. After an idle time, the wall clocks of two entries are far
// apart although the later one has only just been written. So the target counts as up
// to date until the last time that the source had no more entries. mu is held.
func (m *Monitor) lag() time.Duration {
	if m.source.HeardAt.IsZero() {
		return 0
	}
	committed := int64(m.source.Metadata.CommittedWall)
	if len(m.gaps.LeftOut) > 0 && !m.gaps.Copying {
		if at := m.gaps.Reached(m.progress); at.Applied.Before(m.progress.Applied) {
			return max(0, time.Duration(committed-m.leftOutWall())*time.Millisecond)
		}
	}
	late := m.source.Metadata.Behind
	if m.isCaughtUp() {
		return late
	}
	// As of the last reply: that time passes since then is not lag.
	return late + within(m.caughtUp, m.source.HeardAt, committed-m.progress.AppliedWall)
}

// leftOutWall returns the wall time of the entry since which something is left out.
func (m *Monitor) leftOutWall() int64 {
	wall := m.progress.AppliedWall
	for i := range m.gaps.LeftOut {
		wall = min(wall, m.gaps.LeftOut[i].Wall)
	}
	return wall
}

// isCaughtUp reports whether everything is applied that the source has reported as
// committed.
func (m *Monitor) isCaughtUp() bool {
	return !m.source.Metadata.Committed.After(m.progress.Applied)
}

// isBehind reports whether the member that is read is itself behind others, by more than the target may be.
func (m *Monitor) isBehind() bool {
	return m.source.Metadata.Behind > 0 && (m.cfg.Delay == 0 || m.mostLag() > m.cfg.Delay+behind)
}

// mostLag returns the largest lag that the target can have: the known lag, and the time
// since the source's last reply, as no reply may be due to back-pressure.
func (m *Monitor) mostLag() time.Duration { return m.lag() + time.Since(m.source.HeardAt) }

// MostLag returns the largest lag that the target can have.
func (m *Monitor) MostLag() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mostLag()
}

// undurable is how far the applied operations are ahead of the majority-committed ones
// of the target.
func (m *Monitor) undurable() time.Duration {
	if !m.progress.Applied.After(m.progress.Durable) {
		return 0
	}
	return within(m.durable, time.Now(), m.progress.AppliedWall-m.progress.DurableWall)
}

// within returns a difference of two clocks, given in milliseconds, but no more than
// the time that has passed from a moment, if there was one, until another.
func within(since, until time.Time, millis int64) time.Duration {
	d := max(0, time.Duration(millis)*time.Millisecond)
	if since.IsZero() {
		return d
	}
	return min(d, max(0, until.Sub(since)))
}
