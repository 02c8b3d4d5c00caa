package mongosim

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Status is the state of a running member at one moment: see Member.Status.
type Status struct {
	// State is the member state that replSetGetStatus reports.
	State oplog.MemberState
	// Term is the election term, -1 before the first election.
	Term int64
	// Writable is true for a primary that accepts writes. An elected primary does so
	// when it has finished its drain.
	Writable bool
	// LastApplied, LastDurable and CommitPoint are optimes. CommitPoint is never after
	// LastApplied.
	LastApplied, LastDurable, CommitPoint oplog.OpTime
	// RollbackID changes with each rollback of the member.
	RollbackID int
	// SyncSource is the host:port that the member pulls its oplog from, "" if none.
	SyncSource string
	// ConfigVersion is the version of the set's configuration that the member has.
	ConfigVersion int64
}

// Status returns the member's state; false while it is down.
func (m *Member) Status() (Status, bool) {
	v, ok := m.view()
	return Status{
		State: v.State, Term: v.Term, Writable: v.Writable,
		LastApplied: v.Applied, LastDurable: v.Durable, CommitPoint: v.Committed,
		RollbackID: v.RBID, SyncSource: v.Source, ConfigVersion: v.ConfigVersion,
	}, ok
}

// view returns the member's view of the set; false while it is down.
func (m *Member) view() (repl.View, bool) {
	p := m.process()
	if p == nil {
		return repl.View{}, false
	}
	return p.node.View(), true
}

// Oplog returns the entries of the member's oplog from a timestamp on, oldest first;
// the zero timestamp means all. It reads the data, so it works while the member is down
// or frozen. The entries must not be changed.
func (m *Member) Oplog(from bson.Timestamp) []bson.Raw {
	var all []bson.Raw
	_ = m.disk().Read(func(r *storage.Reader) error { // reading memory cannot fail
		for e := range r.Oplog().From(from) {
			all = append(all, e.Raw)
		}
		return nil
	})
	return all
}

// Pressure is the load that serverStatus of a member shows: see Member.SetPressure.
// The member does not become slower.
type Pressure struct {
	// Lagged is flowControl.isLagged: a primary delays its writers, as the majority
	// does not keep up. LaggedCount is isLaggedCount.
	Lagged      bool
	LaggedCount int32
	// CacheUsed and CacheDirty are fractions of the configured cache, 0 to 1. Zero
	// shows the real values: all data, and nothing dirty.
	CacheUsed, CacheDirty float64
	// EvictingThreads is how often a client's thread had to evict pages.
	EvictingThreads int64
	// WriteTickets and ReadTickets are in use, of 128 each.
	WriteTickets, ReadTickets int32
}

// SetPressure makes serverStatus of the member show load; the zero value ends that. It
// outlives a restart.
func (m *Member) SetPressure(p Pressure) {
	shown := dispatch.Pressure(p)
	m.pressure.Store(&shown)
	if run := m.process(); run != nil {
		run.server.SetPressure(shown)
	}
}
