package status

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
)

// DivergedNamespace is a collection with operations that met what they cannot have met at the source, and after which the link has
// continued (--on-divergence=report). It is listed until it was copied again, compared without a difference, or dropped by the source.
// Namespace is its name on the target, Source at the source.
type DivergedNamespace struct {
	Namespace  string `json:"namespace"`
	Source     string `json:"source"`
	Operations int64  `json:"operations"`
	// First and Last are when the first and the last of them were met, What describes the state that the newest has met.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	What  string    `json:"what"`
}

// NewDiverged returns the diverged collections of a link.
func NewDiverged(list []checkpoint.Diverged) []DivergedNamespace {
	out := make([]DivergedNamespace, len(list))
	for i := range list {
		d := &list[i]
		out[i] = DivergedNamespace{string(d.NS), string(d.Source), d.Ops, d.Since.UTC(), d.Until.UTC(), d.What}
	}
	return out
}

// divergedText names the diverged collections, and since when they are; empty for nothing.
func divergedText(list []DivergedNamespace) (text string, since time.Time) {
	if len(list) == 0 {
		return "", since
	}
	n, names := int64(0), make([]string, len(list))
	for i := range list {
		d := &list[i]
		n += d.Operations
		names[i] = d.Namespace
		if since.IsZero() || d.First.Before(since) {
			since = d.First
		}
	}
	what := fmt.Sprintf("%d operations", n)
	if n == 1 {
		what = "1 operation"
	}
	return fmt.Sprintf("%s in %s since %s UTC", what, some(names), since.UTC().Format(time.DateTime)), since
}

// diverges holds while collections have diverged that nothing has made, or found, exact again.
func diverges(s *Snapshot) (string, time.Time) {
	text, since := divergedText(s.Diverged)
	if text == "" {
		return "", since
	}
	return "The target is not exact: what the link has met cannot have been at the source, " + text + ".", since
}

// dealWithDiverged is what to do about it.
func dealWithDiverged(s *Snapshot) string {
	return "To copy it again: " + s.command("resync", "--namespace", s.Diverged[0].Source) + "; or to find what differs: " + s.verifies() + ", then: " + s.command("repair", "--from-verified")
}

func divergencesReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	text, _ := divergedText(s.Diverged)
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
