package status

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Guard has the foreign writes: those to mirrored namespaces of the target that the
// link has not made.
type Guard struct {
	// Mode is off, alarm or stop.
	Mode string `json:"mode"`
	// Watching is whether the target's oplog is read now, Why why not.
	Watching bool   `json:"watching"`
	Why      string `json:"why,omitempty"`
	// Examined is the time of the last entry of the target's oplog that was examined, by the
	// target's clock.
	Examined *time.Time `json:"examined"`
	// Total counts the foreign writes since the link was made, Kinds by kind.
	Total int64            `json:"total"`
	Kinds map[string]int64 `json:"kinds"`
	// Newest are the newest of them, the newest first.
	Newest []ForeignWrite `json:"newest"`
	// Namespaces have foreign writes that are open: the collection was neither
	// copied again nor cleared. More counts the writes to those beyond the first hundred.
	Namespaces []ForeignNamespace `json:"namespaces"`
	More       int64              `json:"more"`
	// Gaps are the newest times in which the target's oplog was not watched.
	Gaps []GuardGap `json:"gaps"`
	// open is how many writes are not dealt with. newest is the newest of them, nil if it is not kept, and now the present name of its
	// namespace, empty if that is not listed.
	open   int64
	newest *ForeignWrite
	now    string
}

// ForeignWrite is a foreign write.
type ForeignWrite struct {
	// At is when it was logged, by the target's clock.
	At   time.Time `json:"at"`
	Kind string    `json:"kind"`
	// Namespace is the target's, To the new name of a rename.
	Namespace string `json:"namespace"`
	To        string `json:"to,omitempty"`
	// ID is the _id as text, empty for a command; Session the client's session, empty for none.
	ID        string `json:"id,omitempty"`
	Session   string `json:"session,omitempty"`
	TxnNumber int64  `json:"txnNumber,omitempty"`
}

// ForeignNamespace is a namespace with foreign writes. Namespace is its name on the target, Source
// at the source.
type ForeignNamespace struct {
	Namespace string    `json:"namespace"`
	Source    string    `json:"source"`
	Count     int64     `json:"count"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	// Copying is whether it is being copied again.
	Copying bool `json:"copying"`
}

// GuardGap is a time in which the target's oplog was not watched.
type GuardGap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Why  string    `json:"why"`
}

// addGuard adds the state of foreign writes, if this process leads.
func addGuard(s *Snapshot, p *monitor.Snapshot) {
	g := p.Guard
	if g == nil || !s.leads() && !s.is(monitor.Failed) {
		return
	}
	st := &g.State
	out := &Guard{
		Mode: string(g.Mode), Watching: g.Watching, Why: g.Why, Total: st.Total(), Kinds: map[string]int64{}, More: st.More, open: st.OpenWrites(),
		Newest: make([]ForeignWrite, len(st.Writes)), Namespaces: make([]ForeignNamespace, len(st.Touched)), Gaps: make([]GuardGap, len(st.Gaps)),
	}
	if st.Wall != 0 {
		out.Examined = known(time.UnixMilli(st.Wall))
	}
	maps.Copy(out.Kinds, st.Counts)
	for i := range st.Writes {
		w := &st.Writes[i]
		out.Newest[i] = ForeignWrite{w.Wall.UTC(), w.Kind, string(w.NS), string(w.To), w.ID, w.Session, w.Txn}
	}
	newest, now := st.NewestOpen()
	for i := range st.Writes {
		if &st.Writes[i] == newest {
			out.newest, out.now = &out.Newest[i], string(now)
		}
	}
	for i, t := range st.Touched {
		out.Namespaces[i] = ForeignNamespace{string(t.NS), string(t.Source), t.Count, t.First.UTC(), t.Last.UTC(), t.Copying}
	}
	for i, gap := range st.Gaps {
		out.Gaps[i] = GuardGap{gap.From.UTC(), gap.To.UTC(), gap.Why}
	}
	s.Guard = out
}

// foreign holds while namespaces have foreign writes that were neither repaired nor cleared.
func foreign(s *Snapshot) (string, time.Time) {
	g := s.Guard
	if g == nil || len(g.Namespaces) == 0 && g.More == 0 {
		return "", time.Time{}
	}
	n, since := g.open, time.Time{}
	for _, t := range g.Namespaces {
		if since.IsZero() || t.First.Before(since) {
			since = t.First
		}
	}
	to := g.where()
	out := fmt.Sprintf("Something else writes to the target: %d writes to %s", n, to)
	if n == 1 {
		out = "Something else writes to the target: 1 write to " + to
	}
	if w, now := g.newest, g.now; w != nil {
		out += fmt.Sprintf("; the newest at %s UTC: %s of %s", w.At.Format(time.DateTime), w.Kind, w.Namespace)
		if w.ID != "" {
			out += " {_id: " + w.ID + "}"
		}
		if w.Session != "" {
			out += ", session " + w.Session
		}
		if now != "" && now != w.Namespace && now != w.To {
			out += ", which the link has renamed to " + now
		}
	}
	return out + ".", since
}

// where names namespaces with foreign writes that are open.
func (g *Guard) where() string {
	const others = "namespaces that are not listed"
	names := make([]string, len(g.Namespaces))
	for i := range g.Namespaces {
		names[i] = g.Namespaces[i].Namespace
	}
	switch {
	case len(names) == 0:
		return others
	case g.More > 0:
		return some(names) + ", and to " + others
	}
	return some(names)
}

// openNamespaces names those of the metadata.
func openNamespaces(st *guard.State) string {
	g := Guard{More: st.More}
	for _, t := range st.Touched {
		g.Namespaces = append(g.Namespaces, ForeignNamespace{Namespace: string(t.NS)})
	}
	return g.where()
}

func dealWithForeign(s *Snapshot) string {
	g := s.Guard
	i := slices.IndexFunc(g.Namespaces, func(t ForeignNamespace) bool { return !t.Copying })
	switch {
	case i < 0 && g.More > 0: // A resync of others does not tell what these are.
		return "Stop what writes there. To find what else it has changed: " + s.verifies() + "; then: " + s.command("guard", "--clear")
	case i < 0:
		return "Wait until they are copied again."
	}
	return "Stop what writes there. To copy it again: " + s.command("resync", "--namespace", g.Namespaces[i].Source) +
		"; if the writes were intended: " + s.command("guard", "--clear")
}

// metricKinds are the kinds of foreign writes that metrics tell apart.
var metricKinds = []string{"insert", "update", "delete", "command"}

// metricCounts returns the number of foreign writes of each of them.
func (g *Guard) metricCounts() map[string]int64 {
	counts := map[string]int64{}
	for kind, n := range g.Kinds {
		if !slices.Contains(metricKinds, kind) {
			kind = "command"
		}
		counts[kind] += n
	}
	return counts
}

// watches reports whether a mode looks for foreign writes.
func (g *Guard) watches() bool { return g.Mode != string(guard.Off) }
