package monitor

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Snapshot is the state of a link at one moment.
type Snapshot struct {
	Link   string
	State  State
	Reason string
	Since  time.Time
	// Attempts counts the attempts since the start, Term is the term of the last one.
	Attempts int
	Term     int64
	// Process identifies this process in leases, empty if the lease has no end. Lease is what
	// this process has of it. Leader is the process that leads while this one stands by.
	Process string
	Lease   lease.Stats
	Leader  *Leader
	// BlindSince is since when a process that waits for the lease cannot look at it, zero if
	// it can.
	BlindSince time.Time
	// Progress is the position up to which everything that the link mirrors is in the
	// target. Its optimes are null while a copy is not consistent, and do not advance
	// while a collection is left out. It is the progress that may be reported;
	// checkpoint.Gaps says how it differs from Log.
	Progress checkpoint.Progress
	checkpoint.Gaps
	// Log is the progress of applying the oplog, whatever it was applied to: where the
	// link continues.
	Log checkpoint.Progress
	// Back says which link this one is the way back of, nil if it is none, or not known.
	Back *checkpoint.Back
	// Copy is the link's copy, nil if it has none.
	Copy *Copy
	// Spool is the state of the spool on disk, nil if it is not in use.
	Spool *spool.DiskStats
	// RelayBytes is the size of the relay log, 0 if there is to be none. KeepsUp means that Spool is
	// a relay log, and within that: the target keeps up. RelayOff is why there is none although
	// there is to be one.
	RelayBytes int64
	KeepsUp    bool
	RelayOff   string
	// Lacking lists the views, indexes and options of collections that the target does not have at all, as
	// read last.
	Lacking ddl.Lacking
	// Deferred are the specs of the target that are deferred until cutover, as read last; nil
	// if they are not known. It is not modified.
	Deferred ddl.Specs
	// DeferredOf are the indexes of them by the source's collection, sorted; nil while that is not
	// known.
	DeferredOf map[oplog.Namespace][]string
	// Cut is the newest consistent cut, nil if none is known. It is not modified.
	Cut *checkpoint.Cut
	// CutInterval is the minimum time between two cuts, 0 if they are made on request only.
	CutInterval time.Duration
	// Window is the source's oplog, as far as it is known.
	Window Window
	// Fetched is the last entry that was read.
	Fetched oplog.OpTime
	// SourceSet and SourceHost are the set and the member that is read, empty if none
	// is. Source is the metadata of its last reply, received at HeardAt.
	SourceSet  string
	SourceHost string
	Source     fetcher.Metadata
	HeardAt    time.Time
	// NoPrimarySince is when it last replied knowing a primary, zero if it knows one now: what the set has committed since, it does not say.
	NoPrimarySince time.Time
	// NoPrimaryYet: none of its replies in this attempt knew a primary, and NoPrimarySince is the first one.
	NoPrimaryYet bool
	// SilentAfter is how long the source may take for a reply. Blocked is since when it is not
	// asked, as the entries that were read are not taken; zero if it is.
	SilentAfter time.Duration
	Blocked     time.Time
	// Lag is how far the target is behind the source's commit point, by the source's
	// clock; 0 if nothing is missing. It is the lag of Progress while a collection is
	// left out, and of Log while a copy is not consistent.
	Lag time.Duration
	// Delay is how far behind the source the target is kept on purpose.
	Delay time.Duration

	Buffer buffer.Stats
	// Applier has the counts of all attempts since the start.
	Applier applier.Stats
	// Work counts the work of the stages since the start, Latency how long their operations
	// took. Namespaces counts on after the Snapshot was taken. Both may be nil.
	Work       Work
	Latency    *metric.Distribution
	Namespaces *Namespaces
	// Clock is that of the source's primary.
	Clock    syncsource.Clock
	Resolver syncsource.Status
	// LoginRefused says which member of the source refuses the login, and how, empty if none does, or
	// another one could be read from.
	LoginRefused string
	// TargetHosts are the target's members.
	TargetHosts []string
	// Waits are the commands that have waited for longer than 5 s, the longest first.
	Waits []mongo.Wait
	// TargetSilent is since when nothing that the target is asked is answered, zero if it
	// answers, or is not asked.
	TargetSilent time.Time
	// Stands is since when nothing has been applied although there is something to apply, and
	// no command is known to wait; nil if something is.
	Stands *Stands
	// Control has the settings and requests of operators, nil for a part.
	Control *control.Status
	// Guard has the foreign writes to the target, nil for a part. Only the process that
	// leads watches.
	Guard *guard.Status
	// LastError is why the last attempt ended, empty if none has.
	LastError   string
	LastErrorAt time.Time
}

// NewestCut returns the newest consistent cut, the zero Cut if none is known, and the obstacle to
// the next one, as far as that is known.
func (s *Snapshot) NewestCut() (newest checkpoint.Cut, why string) {
	if s.Cut != nil {
		newest = *s.Cut
	}
	if why = s.NoCut(); why == "" && s.Applier.WaitsFor != "" {
		why = "the applier waits for " + s.Applier.WaitsFor
	}
	return newest, why
}

// NoCut is the reason why no consistent cut is made, empty if none is known.
func (s *Snapshot) NoCut() string {
	switch {
	case s.State == Standby || s.State.ended():
		return ""
	case s.Control != nil && s.Control.Paused != nil:
		return "the link is paused"
	case s.Copying:
		return "the copy is not consistent yet"
	case s.State == Starting:
		return "the link is starting: " + cmp.Or(s.Reason, "it reads its state from the target")
	}
	return s.Applier.NoCut
}

// sideTarget is the side of the target in Waits.
const sideTarget = "target"

// Stands describes a link that applies nothing.
type Stands struct {
	Since time.Time
	// Why says in which stage the next entries are, and what the applier waits for.
	Why string
}

// Copy is the state of a link's copy.
type Copy struct {
	checkpoint.Copy
	// Progress is the progress of copying documents, as of this process; nil from
	// CopyPhase checkpoint.Replaying on.
	Progress *initialsync.Progress
	// Spool is the state of the spool on disk, nil if it is no longer in use.
	Spool *spool.DiskStats
	Pace  pace.Status
}

// Snapshot returns the present state of the link. It does not know Resolver, LoginRefused, Clock
// and TargetHosts.
func (m *Monitor) Snapshot() Snapshot {
	m.mu.Lock()
	a, c, counted, spoolWhy := m.attempt, m.copy, m.counted, m.spoolWhy
	s := Snapshot{
		Link: m.cfg.Link, State: m.state, Reason: m.reason, Since: m.since, Attempts: m.attempts, Term: a.State.Term,
		Progress: m.gaps.Reached(m.progress), Gaps: m.gaps, Log: m.progress, Back: a.State.Back,
		Cut: m.cut, CutInterval: m.cfg.CutInterval, Lacking: m.lacking, Deferred: m.deferred, Window: m.window, Fetched: m.source.Last,
		SourceSet: a.Set, SourceHost: m.source.Host, Source: m.source.Metadata, HeardAt: m.source.HeardAt, NoPrimarySince: m.noPrimarySince, NoPrimaryYet: m.noPrimaryYet,
		SilentAfter: m.silentAfter(), Blocked: m.source.Blocked,
		RelayBytes: m.cfg.RelayBytes, KeepsUp: a.Spool != nil && m.keepsUp(a.Spool), RelayOff: m.relayOff,
		Lag: m.lag(), Delay: m.cfg.Delay, LastError: m.err, LastErrorAt: m.errAt,
	}
	if m.state == Standby {
		leader := m.leader
		s.Term = leader.Term
		if !m.vacant {
			s.Leader = &leader
		}
	}
	if !m.blind.IsZero() {
		s.BlindSince = m.blind
		s.AddReason("the lease cannot be read since " + m.blind.UTC().Format(time.TimeOnly) + " UTC: " + m.blindWhy)
	}
	standing := m.stands
	m.mu.Unlock()
	if a.Spool != nil {
		disk := a.Spool.Disk()
		s.Spool = &disk
		if spoolWhy != "" {
			s.AddReason(spooled(spoolWhy, disk.Full, disk.Why))
		}
	}
	s.Copy, s.Applier = a.snapshot(c, s.Spool), a.counts(counted)
	s.Buffer = a.buffer()
	s.Work, s.Latency, s.Namespaces = m.gauges.work(time.Now()), m.gauges.Latency.Now(), &m.gauges.Namespaces
	s.AddReason(describeKept(s.Applier.KeptBack))
	s.TargetSilent = m.cfg.Waits.Silent(sideTarget)
	if s.Waits = m.cfg.Waits.Longer(waitsAfter); len(s.Waits) > 0 {
		s.AddReason(s.Waits[0].String())
	} else if !standing.IsZero() {
		if why := m.unapplied(); why != "" {
			s.Stands = &Stands{Since: standing, Why: why}
			s.AddReason(stands(standing, why))
		}
	}
	return s
}

// spooled says why the oplog is to be spooled to disk, and why it is not where the spool is full.
func spooled(why string, full bool, whyFull string) string {
	if full {
		return "the oplog is to be spooled to disk (" + why + "), and the spool is full: " + whyFull
	}
	return "the oplog is spooled to disk: " + why
}

// describeKept lists the collections that wait for an index build.
func describeKept(list []applier.KeptBack) string {
	if len(list) == 0 {
		return ""
	}
	names := make([]string, len(list))
	since := list[0].Since
	for i, k := range list {
		names[i] = string(k.NS)
		if k.Since.Before(since) {
			since = k.Since
		}
	}
	return fmt.Sprintf("kept back until the target has built their indexes, for %s: %s",
		time.Since(since).Round(time.Second), strings.Join(names, ", "))
}

// AddReason adds to the reason for the state of a link that has not ended.
func (s *Snapshot) AddReason(why string) {
	switch {
	case s.State.ended() || why == "":
	case s.Reason == "":
		s.Reason = why
	default:
		s.Reason += "; " + why
	}
}

// snapshot returns the state of a copy, nil if there is none.
func (a *Attempt) snapshot(c *checkpoint.Copy, disk *spool.DiskStats) *Copy {
	if c == nil {
		return nil
	}
	s := &Copy{Copy: *c, Spool: disk, Pace: pace.Status{Factor: 1}}
	if a.Sync != nil {
		progress := a.Sync.Progress()
		s.Progress, s.Pace = &progress, a.Sync.Pace()
	}
	return s
}

// counts returns the counts of an attempt, added to those of the ones before.
func (a *Attempt) counts(before applier.Stats) applier.Stats {
	if a.Counts == nil {
		return before
	}
	s := a.Counts()
	s.Ops += before.Ops
	s.Inserts += before.Inserts
	s.Updates += before.Updates
	s.Deletes += before.Deletes
	s.Bytes += before.Bytes
	s.Flushes += before.Flushes
	s.Coalesced += before.Coalesced
	s.Retries += before.Retries
	s.Divergences += before.Divergences
	s.DeletesEmpty += before.DeletesEmpty
	s.Ignored += before.Ignored
	s.Skipped += before.Skipped
	s.Commands += before.Commands
	s.Barriers += before.Barriers
	s.Listed += before.Listed
	s.Reroutes += before.Reroutes
	s.Cuts += before.Cuts
	return s
}

// Standing is the progress of a link, to find out whether a failed attempt advanced it.
type Standing struct {
	applied oplog.OpTime
	// ops is how many operations were applied: the position stands while a collection waits
	// for an index build.
	ops int64
	// copy is the number of the copy that is being made, 0 if there is none; the rest
	// is its progress.
	copy                 int64
	docs                 int64
	collections, indexes int
}

// Standing returns the present progress of the link.
func (m *Monitor) Standing() Standing {
	m.mu.Lock()
	at, sync := Standing{applied: m.progress.Applied, ops: m.attempt.counts(m.counted).Ops}, m.attempt.Sync
	if m.copy != nil {
		at.copy = m.copy.Number
	}
	m.mu.Unlock()
	if sync != nil {
		p := sync.Progress()
		at.docs, at.collections, at.indexes = p.Docs, p.Collections, p.Indexes
	}
	return at
}

// Beyond reports whether a link has advanced since before: in the entries it has applied or
// copied. A copy that was started again does not count, as otherwise one that becomes
// void each time would be restarted without a pause.
func (s Standing) Beyond(before Standing) bool {
	if s.applied.After(before.applied) {
		return true
	}
	if s.copy != before.copy && before.copy != 0 {
		return false
	}
	return s.ops > before.ops || s.docs > before.docs || s.collections > before.collections || s.indexes > before.indexes
}
