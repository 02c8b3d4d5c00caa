package cutover

import (
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify/standing"
)

// Metadata is the state of a link in the metadata, if its process cannot be asked.
type Metadata struct {
	Link    string
	State   checkpoint.State
	Cuts    []checkpoint.Cut
	Lacking ddl.Lacking
	// Verified has the results of the link's verification.
	Verified standing.Standing
	// Unasked is why the process cannot be asked; Idle is true if none runs the link.
	Unasked string
	Idle    bool
	At      time.Time
}

// Preconditions returns the preconditions of status.Snapshot.Readiness as far as the metadata
// have them. The rest is unknown, so the link is never ready.
func (m *Metadata) Preconditions(limits status.ReadinessLimits) []status.Precondition {
	s := m.snapshot()
	list := s.Readiness(limits).Preconditions
	const ask = "Start the link with --listen, or say where it serves its status: --at HOST:PORT."
	for i := range list {
		switch p := &list[i]; p.Name {
		case steady:
			p.Standing, p.Value, p.Next = status.NotKnown, "the process that leads was not asked: "+m.Unasked, ask
			if m.Idle {
				p.Standing, p.Value, p.Next = status.Unmet, "no process runs the link", "replicator run --link "+s.Link+" …"
			}
		case foreignWrites:
			p.Standing, p.Value, p.Next = status.NotKnown, "only the process that leads knows", ask
		case lag, oplogWindow: // nobody has asked the source: that it may not answer is not the reason
			p.Next = ask
		}
	}
	return list
}

// snapshot is the part of a snapshot that metadata have.
func (m *Metadata) snapshot() *status.Snapshot {
	reached := m.State.Reached()
	c := m.State.Copy
	s := &status.Snapshot{
		Link: m.Link, At: m.At, Consistent: !reached.Applied.IsNull() && len(m.State.LeftOut) == 0 && (c == nil || c.Phase == checkpoint.Copied),
	}
	if s.Consistent && !m.State.CopiedUntil.IsNull() {
		s.ConsistentAt = opTime(m.State.CopiedUntil)
	}
	s.Verified, s.Diverged = status.NewVerified(&m.Verified, m.At), status.NewDiverged(m.Verified.Diverged)
	for _, out := range m.State.LeftOut {
		s.LeftOut = append(s.LeftOut, status.LeftOut{Namespace: string(out.NS), Since: opTime(out.Since), Failed: out.Failed})
	}
	for _, kept := range m.State.KeptBack {
		s.KeptBack = append(s.KeptBack, status.KeptBack{Namespace: string(kept.NS)})
	}
	s.SetLacking(&m.Lacking)
	if len(m.Cuts) > 0 {
		cut := &m.Cuts[0]
		s.Cut = &status.Cut{
			Source: opTime(cut.Source), Target: status.ClusterTime{T: cut.Target.T, I: cut.Target.I, Wall: cut.At},
			AgeSeconds: max(0, m.At.Sub(cut.At)).Seconds(),
		}
	}
	return s
}

func opTime(at oplog.OpTime) *status.OpTime {
	return &status.OpTime{T: at.TS.T, I: at.TS.I, Term: at.Term}
}
