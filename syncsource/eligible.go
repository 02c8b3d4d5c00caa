package syncsource

import (
	"fmt"
	"slices"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// unusable returns why a member cannot be read from under any rules, empty if it
// can.
func (c *chooser) unusable(m *Member) string {
	switch {
	case m.Stranger && m.Fault == "":
		return "is not in the set's configuration"
	case m.Arbiter || m.State == oplog.MemberArbiter:
		return "is an arbiter and has no data"
	case !m.Asked:
		return "has not been asked yet"
	case m.Fault != "":
		return m.Fault
	case m.State == oplog.MemberUnknown:
		return "is neither primary nor secondary: it is starting, recovering or rolling back"
	case !m.State.Readable():
		return fmt.Sprintf("is %s, neither primary nor secondary", m.State)
	}
	return ""
}

// refuse returns why a member is not a candidate in a pass, empty if it is. The
// caller checks the tags.
func (c *chooser) refuse(m *Member, pass int) string {
	if reason := c.unfit(m, pass); reason != "" {
		return reason
	}
	return c.stale(m, pass)
}

// unfit is refuse without the check of how new the member's oplog is.
func (c *chooser) unfit(m *Member, pass int) string {
	if reason := c.unusable(m); reason != "" {
		return reason
	}
	isPrimary := m.State == oplog.MemberPrimary
	switch {
	case isPrimary && c.mode == ModeSecondary:
		return "is the primary, and the read preference is secondary"
	case isPrimary && c.mode == ModeSecondaryPreferred && pass == 1:
		return "is the primary, and the read preference is secondaryPreferred"
	case m.NoIndexes:
		return "does not build indexes"
	}
	if d, denied := c.q.Denied.denied(m.Host, c.q.Now); denied {
		return c.denied(d)
	}
	if pass == 2 {
		return ""
	}
	switch {
	case m.Hidden:
		return "is hidden"
	case m.Delay > c.q.Rules.Delay:
		return "is delayed by " + inSeconds(m.Delay)
	}
	return ""
}

// eligible returns the members that the rules allow to read from and that can be read from,
// however new their oplogs are, in the order of the View: each that Choose may return.
func eligible(v View, rules Rules) []string {
	if rules.Pinned != "" {
		return []string{rules.Pinned}
	}
	c := chooser{view: &v, q: &Query{Rules: rules}, mode: rules.mode(&v)}
	primary, _ := v.primary()
	var hosts []string
	for i := range v.Members {
		m := &v.Members[i]
		preferred := m == primary && (c.mode == ModePrimary || c.mode == ModePrimaryPreferred)
		if preferred || c.mode != ModePrimary && c.unfit(m, 2) == "" && c.hasAnyTags(m) {
			hosts = append(hosts, m.Host)
		}
	}
	return hosts
}

// Level returns the newest entry that each of the members has that may be read from, without those in except and those that
// lag the newest of them by more than the rules allow: to copy any of them, although some lack the latest writes.
// It returns the null optime if there is none.
func (r *Resolver) Level(except map[string]bool) oplog.OpTime {
	v := r.views.View()
	var applied []oplog.OpTime
	for _, host := range eligible(v, r.cfg.Rules) {
		if m, known := v.find(host); known && !except[host] && m.Up() && m.State.Readable() && !m.Applied.IsNull() {
			applied = append(applied, m.Applied)
		}
	}
	if len(applied) == 0 {
		return oplog.OpTime{}
	}
	newest := slices.MaxFunc(applied, oplog.OpTime.Compare)
	level := newest
	for _, at := range applied {
		if at.Before(level) && lagSeconds(at.TS, newest.TS) <= int64(r.cfg.Rules.MaxLag/time.Second) {
			level = at
		}
	}
	return level
}

// hasAnyTags reports whether a member has one of the tag sets.
func (c *chooser) hasAnyTags(m *Member) bool {
	return len(c.q.Rules.TagSets) == 0 || slices.ContainsFunc(c.q.Rules.TagSets, func(want map[string]string) bool { return c.matches(m, want) })
}

// stale returns why a member's oplog is not new enough, empty if it is.
func (c *chooser) stale(m *Member, pass int) string {
	last := c.q.LastFetched
	if c.equal && m.Applied.Before(last) || !c.equal && !m.Applied.After(last) {
		return c.behind(m)
	}
	if pass == 2 {
		return ""
	}
	primary, known := c.view.primary()
	if !known || !m.Applied.Before(c.oldestAllowed(primary.Applied)) {
		return c.cutOff(m)
	}
	if lag := lagSeconds(m.Applied.TS, primary.Applied.TS); lag > int64(c.q.Rules.MaxLag/time.Second) {
		return fmt.Sprintf("is %d s behind the primary, %s are allowed", lag, inSeconds(c.q.Rules.MaxLag))
	}
	return fmt.Sprintf("has nothing of the primary's term yet: %s, not t%d", m.Applied, primary.Applied.Term)
}

// cutOff returns why a member does not know of what its set commits, empty if it does, as far as is known. The server has no
// such rule: a secondary fetches what its source has applied, a reader only what that knows as committed. A member that
// is cut off from its set, as a former primary with entries of its own, stays ahead of its own commit point for good.
func (c *chooser) cutOff(m *Member) string {
	if m.Committed.IsNull() {
		return ""
	}
	newest := m
	for i := range c.view.Members {
		if o := &c.view.Members[i]; o.Up() && !o.Stranger && o.State.Readable() && o.Committed.After(newest.Committed) {
			newest = o
		}
	}
	return c.olderCommitPoint(m, newest)
}

// withoutCutOff drops, of the members that the second pass leaves, those that do not know of what another one of them knows as committed:
// that one is a reader's last resort.
func (c *chooser) withoutCutOff(left []int, reasons []string) []int {
	newest := -1
	for _, i := range left {
		if m := &c.view.Members[i]; c.anyTags(m) && (newest < 0 || m.Committed.After(c.view.Members[newest].Committed)) {
			newest = i
		}
	}
	return slices.DeleteFunc(left, func(i int) bool {
		if newest >= 0 {
			reasons[i] = c.olderCommitPoint(&c.view.Members[i], &c.view.Members[newest])
		}
		return reasons[i] != ""
	})
}

// leastCommitPointLag is how far a commit point may lag that of another member at least: members are asked at different times.
const leastCommitPointLag = 10 * time.Second

// commitPointLag is how far a commit point may lag that of another member.
func (c *chooser) commitPointLag() time.Duration { return max(c.q.Rules.MaxLag, leastCommitPointLag) }

// olderCommitPoint returns why a member's commit point is too old compared with that of another one, empty if it is not.
func (c *chooser) olderCommitPoint(m, than *Member) string {
	allowed := c.commitPointLag()
	lag := lagSeconds(m.Committed.TS, than.Committed.TS)
	if m.Committed.IsNull() || than.Committed.IsNull() || lag <= int64(allowed/time.Second) {
		return ""
	}
	return fmt.Sprintf("has a commit point %d s older than that of %s, %s are allowed", lag, than.Host, inSeconds(allowed))
}

// oldestAllowed returns the oldest optime that a member's newest entry may have,
// given the primary's newest.
func (c *chooser) oldestAllowed(newest oplog.OpTime) oplog.OpTime {
	seconds := max(0, int64(newest.TS.T)-int64(c.q.Rules.MaxLag/time.Second))
	return oplog.NewOpTime(uint32(seconds), 0, newest.Term)
}

func (c *chooser) behind(m *Member) string {
	last := c.q.LastFetched
	switch {
	case m.Applied.Equal(last):
		return fmt.Sprintf("has nothing newer than %s, which was fetched", last)
	case m.Applied.Term < last.Term && m.Applied.Term != oplog.UninitializedTerm:
		return fmt.Sprintf("ends at %s, in an older term than %s, which was fetched", m.Applied, last)
	}
	return fmt.Sprintf("ends at %s, before %s, which was fetched", m.Applied, last)
}

// denied returns the reason of a denial. That the oplog begins too late is reported
// without a duration: it stays so after the denial has ended.
func (c *chooser) denied(d Denial) string {
	if !d.Oldest.IsNull() && oplog.CompareTimestamps(c.q.LastFetched.TS, d.Oldest.TS) < 0 {
		return fmt.Sprintf("has an oplog that begins at %s", d.Oldest)
	}
	return fmt.Sprintf("is denied for another %s: it %s", inSeconds(d.Until.Sub(c.q.Now)), d.Reason)
}
