package syncsource

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// SourceState is the source's own state as of a reply.
type SourceState struct {
	// Primary is $replData.isPrimary.
	Primary bool
	// Applied is $oplogQueryData.lastOpApplied.
	Applied oplog.OpTime
	// HasSource reports whether it syncs from a member: its syncSourceIndex is not
	// -1.
	HasSource bool
	// Behind is by how much, and for how long at least, its commit point lags that of another member, as far as is known.
	Behind time.Duration
}

// Verdict reports whether to leave the source.
type Verdict struct {
	Change bool
	// Drop reports whether to discard the current reply; the next source is asked for
	// it again.
	Drop bool
	// Reason says why, as a sentence. It is empty if Change is false.
	Reason string
}

func change(format string, args ...any) Verdict {
	return Verdict{Change: true, Reason: fmt.Sprintf(format, args...)}
}

// shouldChange decides after each successful reply of the source. The reply is used
// in any case.
func shouldChange(v View, q Query, said SourceState) Verdict {
	c := newChange(&v, &q)
	if verdict := c.gone(said.Primary); verdict.Change {
		return verdict
	}
	if q.Rules.Pinned == q.Current {
		return Verdict{}
	}
	current, _ := v.find(q.Current)
	newest := said.Applied
	if current.Applied.After(newest) {
		newest = current.Applied
	}
	// If such a source was accepted, leave it only for a better one.
	if !said.HasSource && !said.Primary && !newest.After(q.LastFetched) && (!q.Rules.AcceptEqual || c.anyOther(current)) {
		return change("%s has no sync source, is not the primary, and has nothing newer than %s", q.Current, q.LastFetched)
	}
	for i := range v.Members {
		m := &v.Members[i]
		lag := lagSeconds(newest.TS, m.Applied.TS)
		if lag > int64(q.Rules.MaxLag/time.Second) && c.candidate(m) {
			return change("%s is %d s behind %s, %s are allowed", q.Current, lag, m.Host, inSeconds(q.Rules.MaxLag))
		}
		if reason := c.olderCommitPoint(current, m); reason != "" && said.Behind > c.commitPointLag() && c.lastResort(m) {
			return change("%s %s", q.Current, reason)
		}
	}
	return c.better(current)
}

// shouldChangeOnError decides after the source could not be read from. Without a
// change the read is retried on the same source.
func shouldChangeOnError(v View, q Query) Verdict {
	c := newChange(&v, &q)
	current, known := v.find(q.Current)
	verdict := c.gone(known && current.State == oplog.MemberPrimary)
	if !verdict.Change && q.Rules.Pinned != q.Current {
		verdict = c.better(current)
	}
	if !verdict.Change {
		verdict = pingShouldChange(v, q)
	}
	verdict.Drop = verdict.Change
	return verdict
}

// pingShouldChange reports whether another member is so much nearer than the source
// that a change pays off. The current reply is then discarded.
func pingShouldChange(v View, q Query) Verdict {
	c := newChange(&v, &q)
	rules := &q.Rules
	current, known := v.find(q.Current)
	switch {
	case !known, current.Pings == 0:
		return Verdict{}
	case rules.Pinned != "", rules.Delay > 0:
		return Verdict{}
	case c.mode == ModePrimary, c.mode == ModePrimaryPreferred && current.State == oplog.MemberPrimary:
		return Verdict{}
	case v.Answers < 5*v.members(), q.History.tooOften(q.Now):
		return Verdict{}
	}
	for i := range v.Members {
		m := &v.Members[i]
		if m == current || m.Pings == 0 || roundPing(current)-roundPing(m) <= pingThreshold || !c.candidate(m) {
			continue
		}
		// Choose would not prefer a member with tags of a later set.
		if c.tagRank(m) > c.tagRank(current) {
			continue
		}
		verdict := change("%s answers in %s, %s in %s", m.Host, inPing(m), q.Current, inPing(current))
		verdict.Drop = true
		return verdict
	}
	return Verdict{}
}

func newChange(v *View, q *Query) *chooser {
	q.Rules.setDefaults()
	return &chooser{view: v, q: q, mode: q.Rules.mode(v)}
}

// gone reports whether the source must not be read any more, or another source is
// configured.
func (c *chooser) gone(isPrimary bool) Verdict {
	m, known := c.view.find(c.q.Current)
	switch {
	case c.q.Current == "":
		return change("none was chosen yet")
	case !known || m.Stranger:
		return change("%s is not in the set's configuration", c.q.Current)
	case c.mode != ModePrimary, isPrimary, c.q.Rules.Pinned == c.q.Current:
		return Verdict{}
	}
	if primary, ok := c.view.primary(); ok && primary.Host != c.q.Current {
		return change("%s is not the primary, which alone may be read (%s): %s is", c.q.Current, c.whyPrimary(), primary.Host)
	}
	return Verdict{}
}

// better reports whether the source, regardless of how new its oplog is, would not
// be chosen in the first pass, and another member would.
func (c *chooser) better(current *Member) Verdict {
	// A source that has not been asked yet cannot be judged.
	if !current.Asked {
		return Verdict{}
	}
	reason := c.unfit(current, 1)
	if reason == "" && !c.anyTags(current) {
		reason = "has none of the tag sets of the read preference"
	}
	if reason == "" {
		return Verdict{}
	}
	for i := range c.view.Members {
		if m := &c.view.Members[i]; m != current && c.candidate(m) {
			return change("%s %s; %s would do", current.Host, reason, m.Host)
		}
	}
	return Verdict{}
}

// anyOther reports whether a member other than the source could be chosen in the
// first pass.
func (c *chooser) anyOther(current *Member) bool {
	for i := range c.view.Members {
		if m := &c.view.Members[i]; m != current && c.candidate(m) {
			return true
		}
	}
	return false
}

// candidate reports whether a member could be chosen in the first pass. In mode
// primary it has to be the primary.
func (c *chooser) candidate(m *Member) bool {
	if c.mode == ModePrimary {
		primary, ok := c.view.primary()
		return ok && primary == m && c.refuse(m, 1) == ""
	}
	return c.refuse(m, 1) == "" && c.anyTags(m)
}

// lastResort reports whether a member could be chosen in the second pass, where its commit point is new enough.
func (c *chooser) lastResort(m *Member) bool {
	if c.mode == ModePrimary {
		return c.candidate(m)
	}
	return c.refuse(m, 2) == "" && c.anyTags(m)
}

// anyTags reports whether a member has one of the wanted tag sets.
func (c *chooser) anyTags(m *Member) bool {
	return len(c.q.Rules.TagSets) == 0 || c.tagRank(m) < len(c.q.Rules.TagSets)
}

// tagRank returns the index of the first wanted tag set that a member matches. A
// primary in mode primaryPreferred needs no tags.
func (c *chooser) tagRank(m *Member) int {
	if c.mode == ModePrimaryPreferred && m.State == oplog.MemberPrimary {
		return 0
	}
	for i, want := range c.q.Rules.TagSets {
		if c.matches(m, want) {
			return i
		}
	}
	return len(c.q.Rules.TagSets)
}
