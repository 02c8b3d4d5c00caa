package status

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
)

// Diverged sums up the operations that met what they cannot have met at the source, and after which the link has continued
// (--on-divergence=report).
type Diverged struct {
	// Operations counts all of them, since First, when the oldest was met; nil if there is none.
	Operations int64      `json:"operations"`
	First      *time.Time `json:"first"`
	// Namespaces are at most 100 of their collections, by their names at the source; More counts the others.
	Namespaces []DivergedNamespace `json:"namespaces"`
	More       int                 `json:"more"`
}

// DivergedNamespace is a collection with such operations. It is listed until it was copied again, compared without a difference, or dropped
// by the source. Namespace is its name on the target, Source at the source.
type DivergedNamespace struct {
	Namespace  string `json:"namespace"`
	Source     string `json:"source"`
	Operations int64  `json:"operations"`
	// First and Last are when the first and the last of them were met, What describes the state that the newest has met.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	What  string    `json:"what"`
}

// NewDiverged sums up the diverged collections of a link.
func NewDiverged(list []checkpoint.Diverged) *Diverged {
	n := min(len(list), mostNamespaces)
	out := &Diverged{Namespaces: make([]DivergedNamespace, n), More: len(list) - n}
	for i := range list {
		d := &list[i]
		since := d.Since.UTC()
		if out.Operations += d.Ops; out.First == nil || since.Before(*out.First) {
			out.First = &since
		}
		if i < n {
			out.Namespaces[i] = DivergedNamespace{string(d.NS), string(d.Source), d.Ops, since, d.Until.UTC(), d.What}
		}
	}
	return out
}

// text names the collections, and says since when they are not exact; empty for none.
func (d *Diverged) text() (text string, since time.Time) {
	if d == nil || len(d.Namespaces) == 0 || d.First == nil {
		return "", since
	}
	names := make([]string, len(d.Namespaces))
	for i := range d.Namespaces {
		names[i] = d.Namespaces[i].Namespace
	}
	what := fmt.Sprintf("%d operations", d.Operations)
	if d.Operations == 1 {
		what = "1 operation"
	}
	return fmt.Sprintf("%s in %s since %s UTC", what, someOf(names, d.More), d.First.Format(time.DateTime)), *d.First
}

// diverges holds while collections have diverged that nothing has made, or found, exact again.
func diverges(s *Snapshot) (string, time.Time) {
	text, since := s.Diverged.text()
	if text == "" {
		return "", since
	}
	return "The target is not exact: what the link has met cannot have been at the source, " + text + ".", since
}

// dealWithDiverged is what to do about it.
func dealWithDiverged(s *Snapshot) string {
	return "To copy it again: " + s.command("resync", "--namespace", s.Diverged.Namespaces[0].Source) + "; or to find what differs: " + s.verifies() + ", then: " + s.command("repair", "--from-verified")
}

func divergencesReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	text, _ := s.Diverged.text()
	switch n := s.Applier.Divergences; {
	case s.Diverged == nil && n > 0:
		return unmet("The log names the documents. Copy their collections again: "+s.command("resync", "--namespace", "DB.COLLECTION"),
			"%d since %s UTC, when the process was started", n, s.StartedAt.UTC().Format(time.DateTime))
	case s.Diverged == nil:
		return notKnown("Wait until the process has read it from the metadata.", "the divergences are not known")
	case text != "":
		return unmet(dealWithDiverged(s), "%s", text)
	}
	return met("none is open")
}
