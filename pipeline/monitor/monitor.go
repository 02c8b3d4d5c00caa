package monitor

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Config has the settings of a Monitor.
type Config struct {
	// Link is the link's name, MetaDB its metadata database on Target.
	Link   string
	MetaDB string
	Target mongo.Caller
	// Delay is how far behind the source the target is kept.
	Delay time.Duration
	// CutInterval is the minimum time between two consistent cuts, 0 if none is made by itself.
	CutInterval time.Duration
	// RelayBytes is the size of the relay log, 0 if there is to be none.
	RelayBytes int64
	// Await is how long the source may wait before it answers without an entry. Default 5 s.
	Await time.Duration
	// Waits tracks the commands to both clusters.
	Waits *mongo.Waits
	// Paused reports whether nothing may be applied, as the link is paused. May be nil.
	Paused   func() bool
	Observer event.Observer
	// Registry gets the metrics. May be nil.
	Registry prometheus.Registerer
}

// Attempt is an attempt that has started.
type Attempt struct {
	// State is the link's, Set the name of the source's set, Start the progress that the
	// attempt continues.
	State checkpoint.State
	Set   string
	Start checkpoint.Progress
	// Sync copies; otherwise, the oplog is applied, and Counts returns the applier's.
	Sync   *initialsync.Sync
	Counts func() applier.Stats
	// Spool contains the oplog if it is spooled, otherwise Queue does. Both are set while the
	// entries after those in memory are spooled.
	Spool *spool.Spool
	Queue *buffer.Queue
}

// Monitor records the state and progress of a link. It is safe for concurrent use.
type Monitor struct {
	cfg    Config
	gauges Gauges

	mu     sync.Mutex // guards the fields below
	state  State
	reason string
	since  time.Time
	// spoolWhy is why the attempt's spool is used, empty for that of a copy, or one that an
	// earlier process has left.
	spoolWhy string
	// relayOff is why there is no relay log although there is to be one, empty if there is.
	relayOff string
	// attempt is the present or last one, number attempts; resting means that it has
	// ended: the source's state does not matter.
	attempt  Attempt
	attempts int
	resting  bool
	// counted are the counts of the earlier attempts.
	counted applier.Stats
	// copy is the link's copy, nil if it has none.
	copy *checkpoint.Copy
	// gaps are the gaps of the target at progress. Its Copying means that the target is
	// not consistent yet.
	gaps checkpoint.Gaps
	// progress is how far the oplog was applied.
	progress checkpoint.Progress
	// source is the last status of the fetch stage. Its Metadata is retained from one
	// attempt to the next; its HeardAt is zero until the first reply in an attempt.
	source fetcher.Status
	// noPrimarySince is when the member that is read last replied knowing a primary, if it knows none since; otherwise zero.
	noPrimarySince time.Time
	// noPrimaryYet: no reply of the attempt knew one, and noPrimarySince is the first reply.
	noPrimaryYet bool
	// caughtUp is when the source was last known to have no unapplied entries. durable
	// is when everything applied was last found durable, or lastDurable last advanced.
	// Both are zero until then in each attempt.
	caughtUp, durable time.Time
	// stands is since when nothing has been applied although there is something to apply, zero
	// while that is not long.
	stands time.Time
	window Window
	// cut is the newest consistent cut, nil if none is known.
	cut     *checkpoint.Cut
	lacking ddl.Lacking
	// deferred are the specs that are deferred until cutover, nil if they are not known.
	deferred ddl.Specs
	err      string
	errAt    time.Time
	// leader is the process that leads while the state is Standby. If none does (vacant), it
	// has the last term.
	leader Leader
	vacant bool
	// blind is since when the lease cannot be read, zero if it can; blindWhy is why not.
	blind    time.Time
	blindWhy string
}

// New returns the Monitor of a link that does not run yet.
func New(cfg Config) *Monitor {
	if cfg.Await == 0 {
		cfg.Await = 5 * time.Second
	}
	return &Monitor{cfg: cfg, gauges: Gauges{Latency: newLatency(cfg.Registry)}}
}

// Starting records that the next attempt is being prepared, and why.
func (m *Monitor) Starting(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resting = true
	m.set(Starting, reason)
}

// Between records that no attempt runs, and that the next one is being prepared. If the last
// one failed, Failed has recorded why.
func (m *Monitor) Between() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resting = true
	if m.state == Steady {
		m.set(Starting, "")
	}
}

// Began records the start of an attempt, after SetGaps.
func (m *Monitor) Began(a Attempt) {
	m.mu.Lock()
	old, now := m.copy, a.State.Copy
	m.counted = m.attempt.counts(m.counted)
	m.counted.KeptBack = nil
	m.attempt, m.copy, m.progress = a, now, a.Start
	if a.Spool == nil {
		m.spoolWhy = ""
	}
	m.attempts++
	m.resting = false
	m.source.Last, m.source.HeardAt = oplog.OpTime{}, time.Time{}
	m.noPrimarySince, m.noPrimaryYet = time.Time{}, false
	m.caughtUp, m.durable = time.Time{}, time.Time{}
	if a.Sync != nil {
		m.set(InitialSync, "")
	}
	m.mu.Unlock()
	if old != nil && old.Phase != checkpoint.Copied && now != nil && now.Phase == checkpoint.Copied {
		m.announceConsistent(now) // the last attempt did not learn that this was recorded
	}
	m.leaveInitialSync()
}

// Failed records why an attempt ended with an error, and that another one follows.
func (m *Monitor) Failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.errAt = err.Error(), time.Now()
	m.resting = true
	m.set(Starting, "trying again: "+m.err)
}

// Ended records how the link's run ended.
func (m *Monitor) Ended(as State, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resting = true
	m.set(as, reason)
}

// Moved records progress.
func (m *Monitor) Moved(progress checkpoint.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.progress.Applied.After(m.progress.Durable) || progress.Durable.After(m.progress.Durable) {
		m.durable = time.Now()
	}
	m.progress = progress
	if !m.source.HeardAt.IsZero() && m.isCaughtUp() {
		m.caughtUp = time.Now()
	}
	if m.source.Host != "" { // else nothing is known of what the source has now
		m.judge()
	}
}

// Cut records a consistent cut that is majority-committed.
func (m *Monitor) Cut(c checkpoint.Cut) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = &c
}

// Consistent records that the copy c is consistent from now on, and announces it.
func (m *Monitor) Consistent(c checkpoint.Copy) {
	m.mu.Lock()
	m.gaps.Copying = false
	m.copy = &c
	m.mu.Unlock()
	m.announceConsistent(&c)
	m.leaveInitialSync()
}

func (m *Monitor) announceConsistent(c *checkpoint.Copy) {
	e := Consistent{OpTime: c.Stop}
	for _, out := range m.Gaps().LeftOut {
		e.LeftOut = append(e.LeftOut, out.NS)
	}
	m.cfg.Observer.Tell(e)
}

// SetGaps records the gaps of the target at the link's position.
func (m *Monitor) SetGaps(gaps checkpoint.Gaps) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gaps = gaps
}

// Gaps returns the gaps of the target at the link's position.
func (m *Monitor) Gaps() checkpoint.Gaps {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gaps
}

// Progress returns how far the oplog was applied.
func (m *Monitor) Progress() checkpoint.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.progress
}

// Spools records that the oplog is spooled from now on, and why.
func (m *Monitor) Spools(s *spool.Spool, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attempt.Spool, m.spoolWhy = s, why
}

// Relays records why there is no relay log although there is to be one, empty if there is.
func (m *Monitor) Relays(off string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.relayOff = off
}

// isSpooled reports whether the oplog is spooled, and whether the spooled entries follow those that
// the present attempt has in memory.
func (m *Monitor) isSpooled() (spooled, follows bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	spooled = m.attempt.Spool != nil && !m.keepsUp(m.attempt.Spool)
	return spooled, spooled && m.attempt.Queue != nil && !m.resting
}

// keepsUp reports whether a spool is a relay log within its size that has been read to its end.
func (m *Monitor) keepsUp(s *spool.Spool) bool {
	return m.cfg.RelayBytes > 0 && m.attempt.Queue == nil && s.AllRead() && s.Size() <= m.cfg.RelayBytes
}

// KeptBack returns the collections that wait for an index build.
func (m *Monitor) KeptBack() []applier.KeptBack {
	m.mu.Lock()
	counts := m.attempt.Counts
	m.mu.Unlock()
	if counts == nil {
		return nil
	}
	return counts().KeptBack
}

// Source returns src with the newer information about the member that is read.
func (m *Monitor) Source(src checkpoint.Source) checkpoint.Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	if said := &m.source.Metadata; said.Host != "" {
		src.Host, src.RBID = said.Host, said.RBID
	}
	return src
}

// Upstream implements feedback.Upstream: the member that is read.
func (m *Monitor) Upstream() (feedback.Source, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.source.Caller == nil || m.source.HeardAt.IsZero() {
		return feedback.Source{}, false
	}
	said := &m.source.Metadata
	return feedback.Source{
		Host: m.source.Host, Caller: m.source.Caller, Committed: said.Committed, CommittedWall: int64(said.CommittedWall),
		ConfigVersion: said.ConfigVersion,
	}, true
}
