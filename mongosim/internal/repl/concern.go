package repl

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// majorityMode is the write concern mode that every set has.
const majorityMode = "majority"

// WriteConcern is a parsed write concern.
type WriteConcern struct {
	// W is a number of members, Mode a name ("majority" or one of
	// settings.getLastErrorModes) if not "".
	W    int
	Mode string
	// Journal asks for durable optimes. Timeout 0 means no limit.
	Journal bool
	Timeout time.Duration
}

// AwaitWriteConcern waits until the members that the write concern asks for have
// the optime; the null optime is everywhere. It fails with WriteConcernTimeout,
// UnsatisfiableWriteConcern, UnknownReplWriteConcern, PrimarySteppedDown or the
// cause of ctx.
func (n *Node) AwaitWriteConcern(ctx context.Context, at oplog.OpTime, wc WriteConcern) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.IsNull() {
		return nil
	}
	local := wc.Mode == "" && wc.W <= 1
	if !local {
		if err := n.satisfiable(wc); err != nil {
			return err
		}
		if err := n.stillMine(at); err != nil {
			return err
		}
	}
	epoch, history := n.epoch, n.history
	var limit <-chan time.Time
	if wc.Timeout > 0 {
		timer := time.NewTimer(wc.Timeout)
		defer timer.Stop()
		limit = timer.C
	}
	for expired := false; ; {
		if !local { // the configuration may have changed meanwhile
			if err := n.satisfiable(wc); err != nil {
				return err
			}
		}
		if history == n.history && n.reached(at, wc) {
			return nil
		}
		if n.epoch != epoch || n.history != history || !local && n.role != leader {
			return servererr.New(servererr.PrimarySteppedDown, "Primary stepped down while waiting for replication")
		}
		if expired {
			return servererr.New(servererr.WriteConcernTimeout, "waiting for replication timed out")
		}
		progress := n.progress.wait()
		n.mu.Unlock()
		select {
		case <-progress:
			n.mu.Lock()
		case <-ctx.Done():
			n.mu.Lock()
			return context.Cause(ctx)
		case <-limit:
			n.mu.Lock()
			expired = true // unless the write concern was met at the same time
		}
	}
}

// satisfiable finds write concerns that this configuration can never satisfy.
// Callers hold mu.
func (n *Node) satisfiable(wc WriteConcern) error {
	if n.conf == nil {
		return notYetInitialized()
	}
	switch wc.Mode {
	case majorityMode:
		return nil
	case "":
		data := 0
		for i := range n.conf.members {
			if !n.conf.members[i].Arbiter {
				data++
			}
		}
		if wc.W > data {
			return servererr.New(servererr.UnsatisfiableWriteConcern, "Not enough data-bearing nodes")
		}
		return nil
	}
	mode, ok := n.conf.modes[wc.Mode]
	if !ok {
		return servererr.New(servererr.UnknownReplWriteConcern, "No write concern mode named '%s' found in replica set configuration", wc.Mode)
	}
	if !n.tagged(mode, func(int) bool { return true }) {
		return servererr.New(servererr.UnsatisfiableWriteConcern, "Not enough nodes match write concern mode \"%s\"", wc.Mode)
	}
	return nil
}

// stillMine reports whether an optime of an earlier term is on this primary's
// history. Callers hold mu, which is released for a while.
func (n *Node) stillMine(at oplog.OpTime) error {
	if n.role != leader {
		return servererr.New(servererr.PrimarySteppedDown, "Primary stepped down while waiting for replication")
	}
	if at.Term >= n.term || !at.After(n.committed.at) {
		return nil
	}
	now := n.term
	n.mu.Unlock()
	defer n.mu.Lock()
	var found bool
	_ = n.readOplog(func(entries oplogView) error { // looking cannot fail
		e, ok := entries.At(at.TS)
		found = ok && e.At.Term == at.Term
		return nil
	})
	if !found {
		return servererr.New(servererr.PrimarySteppedDown,
			"Term changed from %d to %d while waiting for replication, indicating that this node must have stepped down.", at.Term, now)
	}
	return nil
}

// reached reports whether enough members have the optime. Callers hold mu.
func (n *Node) reached(at oplog.OpTime, wc WriteConcern) bool {
	mine := n.applied
	if wc.Journal {
		mine = n.durable
	}
	if mine.at.Before(at) {
		return false
	}
	switch {
	case wc.Mode == majorityMode:
		return !n.committed.at.Before(at)
	case wc.Mode == "" && wc.W <= 1:
		return true
	case wc.Mode == "":
		have := 0
		for i := range n.members {
			if !n.conf.members[i].Arbiter && n.memberHas(i, at, wc.Journal) {
				have++
			}
		}
		return have >= wc.W
	}
	return n.tagged(n.conf.modes[wc.Mode], func(i int) bool { return n.memberHas(i, at, wc.Journal) })
}

// memberHas reports whether a member has an optime. Its newest entry proves it
// only if it is of the same term, or of this primary's: entries of other terms
// may be on a diverged history. Callers hold mu.
func (n *Node) memberHas(i int, at oplog.OpTime, journal bool) bool {
	var m moment
	switch {
	case i == n.self && journal:
		return !n.durable.at.Before(at)
	case i == n.self:
		return !n.applied.at.Before(at)
	case journal:
		m = n.members[i].durable
	default:
		m = n.members[i].applied
	}
	return (m.at.Term == at.Term || n.role == leader && m.at.Term == n.term) && !m.at.Before(at)
}

// tagged reports whether the members that have an optime carry as many different
// values of each tag as a mode requires. Callers hold mu.
func (n *Node) tagged(mode map[string]int, has func(i int) bool) bool {
	for tag, want := range mode {
		values := map[string]bool{}
		for i := range n.members {
			if v, ok := n.conf.members[i].Tags[tag]; ok && has(i) {
				values[v] = true
			}
		}
		if len(values) < want {
			return false
		}
	}
	return true
}

// AwaitApplied waits until this member has applied the timestamp (afterClusterTime).
// It fails with the cause of ctx only.
func (n *Node) AwaitApplied(ctx context.Context, ts bson.Timestamp) error {
	return n.await(ctx, ts, func() bson.Timestamp { return n.applied.at.TS })
}

// AwaitCommitted waits until the commit point has reached the timestamp: see
// AwaitApplied.
func (n *Node) AwaitCommitted(ctx context.Context, ts bson.Timestamp) error {
	return n.await(ctx, ts, func() bson.Timestamp { return n.committed.at.TS })
}

func (n *Node) await(ctx context.Context, ts bson.Timestamp, now func() bson.Timestamp) error {
	for {
		n.mu.Lock()
		reached := oplog.CompareTimestamps(now(), ts) >= 0
		progress := n.progress.wait()
		n.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
