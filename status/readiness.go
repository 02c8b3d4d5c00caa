package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Readiness says whether a link could be cut over now, as far as one process knows it.
type Readiness struct {
	// Ready is whether every precondition is met or waived.
	Ready         bool           `json:"ready"`
	Preconditions []Precondition `json:"preconditions"`
}

// Standing is whether a precondition is met.
type Standing string

// The standings of a precondition.
const (
	Met   Standing = "met"
	Unmet Standing = "unmet"
	// NotKnown counts as Unmet: a cutover must not rely on it.
	NotKnown Standing = "unknown"
	// Waived was Unmet or NotKnown, and an operator has said that this is accepted.
	Waived Standing = "waived"
)

// Precondition is a precondition of the cutover of a link.
type Precondition struct {
	// Name does not change between releases.
	Name     string   `json:"name"`
	Standing Standing `json:"standing"`
	// Value describes the finding.
	Value string `json:"value"`
	// AgeSeconds is how old Value is, nil if it is of now.
	AgeSeconds *float64 `json:"ageSeconds"`
	// Next is the next step, empty if none is needed.
	Next string `json:"next,omitempty"`
}

// NewReadiness sums up preconditions.
func NewReadiness(list []Precondition) Readiness {
	r := Readiness{Ready: true, Preconditions: list}
	for i := range list {
		r.Ready = r.Ready && (list[i].Standing == Met || list[i].Standing == Waived)
	}
	return r
}

// ReadinessLimits are the limits of the preconditions. Zero values mean the defaults.
type ReadinessLimits struct {
	// Lag is how far the target may lag. Default 10 s.
	Lag time.Duration
	// CutAge is how old the newest consistent cut may be. Default 5 minutes, for which servers
	// keep their history unless they are told otherwise.
	CutAge time.Duration
	// Rollover is how long the source's oplog must last at its present pace. Default 10 minutes.
	Rollover time.Duration
	// Verified is how long ago everything may have been compared. Default 1 hour.
	Verified time.Duration
}

func (l *ReadinessLimits) setDefaults() {
	l.Lag = cmp.Or(l.Lag, 10*time.Second)
	l.CutAge = cmp.Or(l.CutAge, 5*time.Minute)
	l.Rollover = cmp.Or(l.Rollover, 10*time.Minute)
	l.Verified = cmp.Or(l.Verified, time.Hour)
}

// Readiness returns the preconditions of a cutover that the process knows which leads: those of
// the servers, of the metadata and of the user's privileges are not among them. It asks no server,
// and uses the exported fields only, so that it is right for a Snapshot that was read as JSON.
func (s *Snapshot) Readiness(limits ReadinessLimits) Readiness {
	limits.setDefaults()
	list := make([]Precondition, 0, len(preconditions))
	for _, p := range preconditions {
		one := p.judge(s, &limits)
		one.Name = p.name
		list = append(list, one)
	}
	return NewReadiness(list)
}

// preconditions are in the order in which they are shown.
var preconditions = []struct {
	name  string
	judge func(*Snapshot, *ReadinessLimits) Precondition
}{
	{"steady", steadyReady},
	{"consistent", consistentReady},
	{"lag", lagReady},
	{"cut", cutReady},
	{"verified", verifiedReady},
	{"foreign-writes", foreignReady},
	{"divergences", divergencesReady},
	{"left-out", leftOutReady},
	{"kept-back", keptBackReady},
	{"lacking", lackingReady},
	{"paused", pausedReady},
	{"oplog-window", windowReady},
}

func met(format string, args ...any) Precondition {
	return Precondition{Standing: Met, Value: fmt.Sprintf(format, args...)}
}

func unmet(next, format string, args ...any) Precondition {
	return Precondition{Standing: Unmet, Value: fmt.Sprintf(format, args...), Next: next}
}

func notKnown(next, format string, args ...any) Precondition {
	return Precondition{Standing: NotKnown, Value: fmt.Sprintf(format, args...), Next: next}
}

// aged returns p with the age of its value.
func (p Precondition) aged(age *float64) Precondition {
	p.AgeSeconds = age
	return p
}

func steadyReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	if s.is(monitor.Steady) {
		return met("steady for %s", coarse(max(0, s.At.Sub(s.Since))))
	}
	return unmet("Wait until the link is steady.", "the link is %s%s", s.State, s.because())
}

func consistentReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	switch {
	case s.Consistent && s.ConsistentAt != nil:
		return met("consistent as of %d:%d", s.ConsistentAt.T, s.ConsistentAt.I)
	case s.Consistent:
		return met("consistent from its start")
	}
	return unmet("Wait until the copy, or the resync, is done.", "the target is not consistent")
}

func lagReady(s *Snapshot, limits *ReadinessLimits) Precondition {
	switch {
	case s.LagSeconds == nil:
		return notKnown("Wait until the source answers.", "how far the target lags is not known").aged(s.Source.DataAgeSeconds)
	case *s.LagSeconds > limits.Lag.Seconds():
		return unmet("Wait until the link has caught up.", "%.1f s, more than %s", *s.LagSeconds, limits.Lag).aged(s.Source.DataAgeSeconds)
	}
	return met("%.3f s", *s.LagSeconds).aged(s.Source.DataAgeSeconds)
}

func cutReady(s *Snapshot, limits *ReadinessLimits) Precondition {
	because := ""
	if s.NoCut != "" {
		because = ": " + s.NoCut
	}
	next := s.command("cut", "--wait")
	switch {
	case s.Cut == nil || s.Cut.Source == nil:
		return unmet(next, "the link has made no consistent cut%s", because)
	case s.Cut.AgeSeconds > limits.CutAge.Seconds():
		return unmet(next, "the newest consistent cut is that of %d:%d, older than %s%s",
			s.Cut.Source.T, s.Cut.Source.I, limits.CutAge, because).aged(&s.Cut.AgeSeconds)
	}
	return met("the target was the source as of %d:%d", s.Cut.Source.T, s.Cut.Source.I).aged(&s.Cut.AgeSeconds)
}

func foreignReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	switch g := s.Guard; {
	case g == nil:
		return notKnown("Ask the process that leads.", "whether something else writes to the target is not known")
	case len(g.Namespaces) > 0 || g.More > 0:
		return unmet("docs/foreign-writes.md says what to do; or waive it.", "something else has written to %s", g.where())
	case !g.Watching:
		return notKnown("Watch the target (--guard=alarm), or waive it.", "foreign writes are not watched for: %s", cmp.Or(g.Why, g.Mode))
	}
	return met("none is known")
}

func leftOutReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	if len(s.LeftOut) == 0 {
		return met("none")
	}
	names := make([]string, len(s.LeftOut))
	for i := range s.LeftOut {
		names[i] = s.LeftOut[i].Namespace
	}
	next := "Wait until they are copied again."
	if failed := s.failedCollections(); len(failed) > 0 {
		next = s.command("resync", "--namespace", failed[0])
	}
	return unmet(next, "%s", some(names))
}

func keptBackReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	if len(s.KeptBack) == 0 {
		return met("none")
	}
	names := make([]string, len(s.KeptBack))
	for i := range s.KeptBack {
		names[i] = s.KeptBack[i].Namespace
	}
	return unmet("Wait until their index builds are done.", "%s", some(names))
}

func lackingReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	names := make([]string, 0, len(s.LackingViews)+len(s.LackingIndexes)+len(s.LackingOptions))
	for i := range s.LackingViews {
		names = append(names, "the view "+s.LackingViews[i].Namespace)
	}
	for i := range s.LackingIndexes {
		names = append(names, "the index "+s.LackingIndexes[i].Name+" of "+s.LackingIndexes[i].Namespace)
	}
	for i := range s.LackingOptions {
		names = append(names, "the "+s.LackingOptions[i].Name+" of "+s.LackingOptions[i].Namespace)
	}
	if len(names) == 0 {
		return met("none")
	}
	return unmet("Create them by hand after the cutover, or drop them on the source; or waive it.", "%s", some(names))
}

func pausedReady(s *Snapshot, _ *ReadinessLimits) Precondition {
	switch c := s.Control; {
	case c == nil:
		return notKnown("Ask the process that leads.", "whether the link is paused is not known")
	case c.Throttle.UnreadSince != nil:
		return notKnown("Make the metadata readable.", "whether the link is paused cannot be read since %s UTC", c.Throttle.UnreadSince.UTC().Format("15:04:05"))
	case c.Paused != nil:
		return unmet(s.command("resume"), "paused by %s", cmp.Or(c.Paused.By, "an operator"))
	}
	return met("no")
}

func windowReady(s *Snapshot, limits *ReadinessLimits) Precondition {
	const next = "Give the source a larger oplog (replSetResizeOplog)."
	switch left, rolls := s.OplogWindowLeftSeconds, s.OplogRolloverSeconds; {
	case left == nil:
		return notKnown("Wait until the source answers.", "how long the source's oplog lasts is not known")
	case s.windowGone():
		return unmet(next, "the source's oplog no longer has the entries to read next")
	case rolls != nil && *rolls < limits.Rollover.Seconds():
		return unmet(next, "the source's oplog lasts %s at its present pace, less than %s", coarse(ofSeconds(*rolls)), limits.Rollover)
	case rolls != nil:
		return met("the source's oplog lasts %s at its present pace", coarse(ofSeconds(*rolls)))
	default:
		return met("%s of the source's oplog are older than what the link needs, and it was not seen to roll over", coarse(ofSeconds(*left)))
	}
}
