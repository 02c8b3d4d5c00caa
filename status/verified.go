package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/verify/standing"
)

// Verification is the state of the link's verification in a process.
type Verification struct {
	// Standing is that of the metadata, nil if they were not read yet.
	Standing *standing.Standing
	// Continuous reports whether the link verifies itself, Budget how much of the time, or how many
	// bytes per second, that may take. Why is why it does not at present, empty if it does, or
	// there is no other reason than the pause between two rounds.
	Continuous bool
	Budget     string
	Why        string
}

// Verified has the results of comparing source and target, by the link itself (--verify=continuous)
// or by replicator verify --link.
type Verified struct {
	// At is the time of the source as of which everything was compared last: that of the oldest
	// comparison of any part. Nil if something was never compared, or has changed in other ways
	// since; Why says what. AgeSeconds is how old At is, Cut its cut, Oldest the collection.
	At         *time.Time `json:"at"`
	AgeSeconds *float64   `json:"ageSeconds"`
	Cut        *CutTimes  `json:"cut"`
	Oldest     string     `json:"oldest,omitempty"`
	Why        string     `json:"why,omitempty"`

	// Continuous reports whether the link verifies itself, within Budget; Waiting is why it does not at
	// present.
	Continuous bool   `json:"continuous"`
	Budget     string `json:"budget,omitempty"`
	Waiting    string `json:"waiting,omitempty"`

	// Collections count, Verified of them are verified; New were made since the round began, and count
	// from the next one on.
	Collections int `json:"collections"`
	Verified    int `json:"verified"`
	New         int `json:"new"`
	// Unverified are those that count and are not verified; Unchecked could not be compared the last time. At most a hundred of
	// each are listed, and MoreUnverified and MoreUnchecked count the others.
	Unverified     []UnverifiedNamespace `json:"unverified"`
	MoreUnverified int                   `json:"moreUnverified"`
	Unchecked      []UnverifiedNamespace `json:"unchecked"`
	MoreUnchecked  int                   `json:"moreUnchecked"`

	// Differences counts those of the last comparison of each collection, Kinds by kind: missing, extra,
	// differs, order, catalog. Differing are the collections, those with most first, at most a hundred; MoreDiffering counts the
	// others.
	Differences   int64                `json:"differences"`
	Kinds         map[string]int64     `json:"kinds"`
	Differing     []DifferingNamespace `json:"differing"`
	MoreDiffering int                  `json:"moreDiffering"`

	// Round is the newest comparison of everything, nil before the first one; LastRound is the newest
	// one that is complete.
	Round     *VerifyRound `json:"round"`
	LastRound *VerifyRound `json:"lastRound"`
	// Bytes are the bytes of the source's documents that the newest comparisons are of.
	Bytes int64 `json:"bytes"`
}

// CutTimes are the cluster times of a cut.
type CutTimes struct {
	Source ClusterTimestamp `json:"source"`
	Target ClusterTimestamp `json:"target"`
}

// ClusterTimestamp is a cluster time.
type ClusterTimestamp struct {
	T uint32 `json:"t"`
	I uint32 `json:"i"`
}

// UnverifiedNamespace is a collection that is not verified, or could not be compared. Namespace is its
// name on the target, Source at the source.
type UnverifiedNamespace struct {
	Namespace string     `json:"namespace"`
	Source    string     `json:"source"`
	Why       string     `json:"why"`
	Since     *time.Time `json:"since"`
}

// DifferingNamespace is a collection with differences.
type DifferingNamespace struct {
	Namespace   string `json:"namespace"`
	Source      string `json:"source"`
	Differences int64  `json:"differences"`
	// At is the time of the source as of which it was compared, nil while that has not ended. Found are
	// the first differences.
	At    *time.Time   `json:"at"`
	Found []Difference `json:"found"`
}

// Difference is a difference between source and target.
type Difference struct {
	// Kind is that of replicator verify. ID is a document's _id as extended JSON, cut if it is long;
	// Name and What describe an index or option.
	Kind string `json:"kind"`
	ID   string `json:"_id,omitempty"`
	Name string `json:"name,omitempty"`
	What string `json:"what,omitempty"`
}

// VerifyRound is a comparison of everything.
type VerifyRound struct {
	Number int64 `json:"number"`
	// BeganAt is when it began, EndedAt when it was complete, nil if it is not.
	BeganAt time.Time  `json:"beganAt"`
	EndedAt *time.Time `json:"endedAt"`
	// Collections were listed, Done of them are compared; 0 of an earlier round.
	Collections int64 `json:"collections"`
	Done        int   `json:"done"`
}

// differenceKinds are the names of Verified.Kinds.
var differenceKinds = []string{"missing", "extra", "differs", "order", "catalog"}

// Verifies makes the Tracker show what of returns. It is called before the Tracker is used.
func (t *Tracker) Verifies(of func() Verification) { t.verification = of }

// addVerified adds the state of the verification, if this process leads.
func (t *Tracker) addVerified(s *Snapshot) {
	if t.verification == nil || !s.leads() && !s.is(monitor.Failed) {
		return
	}
	v := t.verification()
	if v.Standing == nil {
		return
	}
	s.Verified, s.Diverged = NewVerified(v.Standing, s.At), NewDiverged(v.Standing.Diverged)
	s.Verified.Continuous, s.Verified.Budget, s.Verified.Waiting = v.Continuous, v.Budget, v.Why
}

// NewVerified returns the Verified of a standing at a time.
func NewVerified(st *standing.Standing, now time.Time) *Verified {
	v := &Verified{
		Oldest: string(st.Oldest), Why: st.Why, Collections: st.Collections, Verified: st.Verified, New: st.New,
		Unverified: namespacesOf(st.Unverified), MoreUnverified: st.MoreUnverified, Unchecked: namespacesOf(st.Unchecked),
		Differences: st.Differences, Kinds: st.Kinds, Differing: make([]DifferingNamespace, len(st.Differing)), Bytes: st.Bytes,
		MoreUnchecked: st.MoreUnchecked, MoreDiffering: st.MoreDiffering,
	}
	if v.Kinds == nil {
		v.Kinds = map[string]int64{}
	}
	if c := st.AsOf; c != nil {
		age := seconds(max(0, now.Sub(c.Wall())))
		v.At, v.AgeSeconds = known(c.Wall()), &age
		v.Cut = &CutTimes{Source: ClusterTimestamp(c.Source), Target: ClusterTimestamp(c.Target)}
	}
	for i := range st.Differing {
		d := &st.Differing[i]
		out := DifferingNamespace{Namespace: string(d.NS), Source: string(d.SourceNS), Differences: d.Differences, Found: make([]Difference, len(d.Found))}
		if d.AsOf != nil {
			out.At = known(d.AsOf.Wall())
		}
		for j, f := range d.Found {
			out.Found[j] = Difference{f.Kind, f.ID, f.Name, f.What}
		}
		v.Differing[i] = out
	}
	if r := &st.Round; r.N > 0 {
		v.Round = &VerifyRound{Number: r.N, BeganAt: r.At.UTC(), Collections: r.Listed, Done: st.Done}
		if l := r.Last; l != nil {
			v.LastRound = &VerifyRound{Number: r.Complete, BeganAt: l.From.UTC(), EndedAt: known(l.To)}
			if !r.Open() {
				v.Round.EndedAt = known(l.To)
			}
		}
	}
	return v
}

func namespacesOf(list []standing.Collection) []UnverifiedNamespace {
	out := make([]UnverifiedNamespace, len(list))
	for i := range list {
		c := &list[i]
		out[i] = UnverifiedNamespace{string(c.NS), string(c.SourceNS), c.Why, known(c.Since)}
	}
	return out
}

func verifiedReady(s *Snapshot, limits *ReadinessLimits) Precondition {
	v := s.Verified
	next := s.verifies()
	if v != nil && v.Continuous {
		next = "Wait for the next round of --verify=continuous, or " + next
	}
	switch {
	case v == nil:
		return notKnown("Wait until the process has read it from the metadata.", "the verified collections are not known")
	case v.Differences > 0:
		return unmet(repairs(s), "%d differences in %s", v.Differences, someOf(v.differing(), v.MoreDiffering)).aged(v.AgeSeconds)
	case v.At == nil:
		return unmet(next, "%s", cmp.Or(v.Why, "not verified"))
	case *v.AgeSeconds > limits.Verified.Seconds():
		return unmet(next, "verified as of %s UTC, longer ago than %s", v.At.Format(time.DateTime), limits.Verified).aged(v.AgeSeconds)
	}
	but := ""
	if v.New > 0 {
		but = fmt.Sprintf("; %d new ones are not compared yet", v.New)
	}
	if n := len(v.Unchecked) + v.MoreUnchecked; n > 0 {
		but += fmt.Sprintf("; %d could not be compared since", n)
	}
	if r := v.LastRound; r != nil {
		but += fmt.Sprintf("; those made since %s UTC may be missing", r.BeganAt.Format(time.DateTime))
	}
	return met("%d collections, no difference, as of %s UTC%s", v.Verified, v.At.Format(time.DateTime), but).aged(v.AgeSeconds)
}

// verifies is the command that compares. It needs the source, too.
func (s *Snapshot) verifies() string { return s.command("verify") + " --source …" }

func (v *Verified) differing() []string {
	names := make([]string, len(v.Differing))
	for i := range v.Differing {
		names[i] = v.Differing[i].Namespace
	}
	return names
}

// differs holds while a comparison has found differences that no later one has found gone.
func differs(s *Snapshot) (string, time.Time) {
	v := s.Verified
	if v == nil || v.Differences == 0 {
		return "", time.Time{}
	}
	text := fmt.Sprintf("The target differs from the source: %d differences in %s", v.Differences, someOf(v.differing(), v.MoreDiffering))
	if v.Differences == 1 {
		text = "The target differs from the source: 1 difference in " + someOf(v.differing(), v.MoreDiffering)
	}
	if len(v.Differing) > 0 && len(v.Differing[0].Found) > 0 {
		f := &v.Differing[0].Found[0]
		text += ": " + f.Kind
		switch {
		case f.ID != "":
			text += " {_id: " + f.ID + "}"
		case f.Name != "":
			text += " " + f.Name
		}
	}
	return text + ".", time.Time{}
}
