package syncsource

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Query is the input of a choice, together with the View.
type Query struct {
	// Now is the current time.
	Now time.Time
	// LastFetched is the newest entry that was fetched.
	LastFetched oplog.OpTime
	// Rules are the requirements on a source.
	Rules Rules
	// Denied are the members that must not be read from at present.
	Denied Denylist
	// Level makes a member that has nothing newer than LastFetched as good as one that is ahead: the reader does not wait for
	// entries.
	Level bool

	// The fields below are used only to decide whether to leave a source.

	// Current is the current source.
	Current string
	// History has the times at which the source was set.
	History history
}

// Choice is the member to read from, and why the others were not chosen.
type Choice struct {
	// Host is the member's name, empty if no member can be read from.
	Host string
	// Member has the chosen member's state; for a pinned source it may be nearly
	// empty.
	Member Member
	// Reason says why this member was chosen, or why none was.
	Reason string
	// Equal reports whether it has nothing newer than the last fetched entry.
	Equal bool
	// Behind means that there is no Host only because the members that would do do not have the last fetched entry, as of when they were asked
	// last: they may have it meanwhile.
	Behind bool
	// Candidates is the number of members that could have been chosen.
	Candidates int
	// Refused has every other member once, in the order of the View.
	Refused []Refusal
}

// Refusal is a member that was not chosen, with the reason.
type Refusal struct {
	Host string
	// pass is the pass in which it was last refused, 1 or 2. 0 means that it was
	// eligible, but another member was better.
	pass int
	// Reason completes a sentence that starts with the member's name.
	Reason string
}

// String returns the refusal as a sentence.
func (r Refusal) String() string { return r.Host + " " + r.Reason }

// Choose chooses the member to read from. It considers the members in two passes,
// the second with weaker requirements, and takes the nearest of those left.
func Choose(v View, q Query) Choice {
	q.Rules.setDefaults()
	c := chooser{view: &v, q: &q, mode: q.Rules.mode(&v), equal: q.Level}
	switch {
	case q.Rules.Pinned != "":
		if d, denied := q.Denied.denied(q.Rules.Pinned, q.Now); denied {
			choice := Choice{Reason: "the source is pinned to " + q.Rules.Pinned + ", which is denied"}
			for i := range v.Members {
				choice.Refused = append(choice.Refused, Refusal{v.Members[i].Host, 1, c.notPinned(&v.Members[i], d)})
			}
			return choice
		}
		return c.only(q.Rules.Pinned, "the source is pinned to it", "is not "+q.Rules.Pinned+", to which the source is pinned")
	case !v.comparable():
		choice := Choice{Reason: "members have not answered often enough yet to be compared"}
		for i := range v.Members {
			reason := c.unusable(&v.Members[i])
			if reason == "" {
				reason = "is not known well enough yet"
			}
			choice.Refused = append(choice.Refused, Refusal{v.Members[i].Host, 1, reason})
		}
		return choice
	case c.mode == ModePrimary:
		return c.primary()
	}
	if c.mode == ModePrimaryPreferred {
		if choice := c.primary(); choice.Host != "" {
			return choice
		}
	}
	choice := c.nearby()
	if choice.Host == "" && q.Rules.AcceptEqual {
		c.equal = true
		choice = c.nearby()
		choice.Equal = choice.Host != "" && !choice.Member.Applied.After(q.LastFetched)
	}
	return choice
}

// chooser makes one choice.
type chooser struct {
	view *View
	q    *Query
	mode Mode
	// equal also accepts members that are not ahead of the last fetched entry.
	equal bool
}

// only returns host as the choice without checking it.
func (c *chooser) only(host, reason, others string) Choice {
	choice := Choice{Host: host, Reason: reason, Member: Member{Host: host, ID: -1, RBID: -1, Term: oplog.UninitializedTerm}, Candidates: 1}
	for i := range c.view.Members {
		if m := &c.view.Members[i]; m.Host == host {
			choice.Member = *m
		} else {
			choice.Refused = append(choice.Refused, Refusal{m.Host, 1, others})
		}
	}
	return choice
}

func (c *chooser) notPinned(m *Member, d Denial) string {
	if m.Host == c.q.Rules.Pinned {
		return c.denied(d)
	}
	return "is not " + c.q.Rules.Pinned + ", to which the source is pinned"
}

// primary returns the primary or no member. The primary need not be ahead: there is
// no alternative to waiting for it.
func (c *chooser) primary() Choice {
	others := "is not the primary, which alone may be read: " + c.whyPrimary()
	primary, known := c.view.primary()
	why := ""
	if known {
		why = c.refusePrimary(primary)
	}
	if !known || why != "" {
		choice := Choice{Reason: "there is no primary"}
		if known {
			choice.Reason = "the primary " + primary.Host + " " + why
			choice.Behind = primary.Applied.Before(c.q.LastFetched)
		}
		for i := range c.view.Members {
			m := &c.view.Members[i]
			reason := others
			if m == primary {
				reason = why
			} else if fault := c.unusable(m); fault != "" {
				reason = fault
			}
			choice.Refused = append(choice.Refused, Refusal{m.Host, 1, reason})
		}
		return choice
	}
	if c.mode == ModePrimaryPreferred {
		others = "is not the primary, which is preferred"
	}
	choice := c.only(primary.Host, "it is the primary", others)
	choice.Equal = !primary.Applied.After(c.q.LastFetched)
	return choice
}

func (c *chooser) refusePrimary(m *Member) string {
	if m.Applied.Before(c.q.LastFetched) {
		return c.behind(m)
	}
	if d, denied := c.q.Denied.denied(m.Host, c.q.Now); denied {
		return c.denied(d)
	}
	return ""
}

func (c *chooser) whyPrimary() string {
	if c.q.Rules.Mode == "" {
		return "the set's configuration does not allow chaining"
	}
	return "that is the read preference"
}

// nearby returns the nearest member of the first pass that leaves any.
func (c *chooser) nearby() Choice {
	reasons := make([]string, len(c.view.Members))
	for pass := 1; pass <= 2; pass++ {
		var left []int
		for i := range c.view.Members {
			reasons[i] = c.refuse(&c.view.Members[i], pass)
			if reasons[i] == "" {
				left = append(left, i)
			}
		}
		if pass == 2 {
			left = c.withoutCutOff(left, reasons)
		}
		left = c.tagged(left, reasons)
		if len(left) > 0 {
			return c.nearest(left, pass, reasons)
		}
	}
	choice := Choice{Reason: "no member is suitable"}
	for i := range c.view.Members {
		m := &c.view.Members[i]
		choice.Refused = append(choice.Refused, Refusal{m.Host, 2, reasons[i]})
		choice.Behind = choice.Behind || c.unfit(m, 2) == "" && c.hasAnyTags(m)
	}
	return choice
}

// tagged returns the members that match the first tag set that any of them matches.
func (c *chooser) tagged(left []int, reasons []string) []int {
	if len(c.q.Rules.TagSets) == 0 {
		return left
	}
	for _, want := range c.q.Rules.TagSets {
		var match []int
		for _, i := range left {
			if c.matches(&c.view.Members[i], want) {
				match = append(match, i)
			}
		}
		if len(match) == 0 {
			continue
		}
		for _, i := range left {
			if !c.matches(&c.view.Members[i], want) {
				reasons[i] = "does not have the preferred tag set"
			}
		}
		return match
	}
	for _, i := range left {
		reasons[i] = "has none of the tag sets of the read preference"
	}
	return nil
}

// matches reports whether a member has all the wanted tags. In mode
// secondaryPreferred a primary, chosen for lack of a secondary, needs none.
func (c *chooser) matches(m *Member, want map[string]string) bool {
	if c.mode == ModeSecondaryPreferred && m.State == oplog.MemberPrimary {
		return true
	}
	return hasTags(m, want)
}

func hasTags(m *Member, want map[string]string) bool {
	for name, value := range want {
		if got, ok := m.Tags[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// nearest chooses the member with the lowest ping, the last one of equals; or the
// primary if its ping exceeds the lowest by pingThreshold at most.
func (c *chooser) nearest(left []int, pass int, reasons []string) Choice {
	members := c.view.Members
	best := left[0]
	for _, i := range left[1:] {
		if !farther(&members[i], &members[best]) {
			best = i
		}
	}
	choice := Choice{Candidates: len(left), Reason: "it is the only suitable one"}
	if len(left) > 1 {
		choice.Reason = fmt.Sprintf("it is the nearest of %d, at %s", len(left), inPing(&members[best]))
	}
	if primary, ok := c.view.primary(); ok {
		for _, i := range left {
			if &members[i] != primary || i == best || primary.Pings == 0 || members[best].Pings == 0 {
				continue
			}
			if roundPing(primary)-roundPing(&members[best]) <= pingThreshold {
				choice.Reason = fmt.Sprintf("it is the primary, and hardly farther than %s: %s, not %s",
					members[best].Host, inPing(primary), inPing(&members[best]))
				if roundPing(primary) == roundPing(&members[best]) {
					choice.Reason = fmt.Sprintf("it is the primary, and no farther than %s: %s", members[best].Host, inPing(primary))
				}
				best = i
			}
		}
	}
	if pass == 2 {
		choice.Reason += ", as no member meets all requirements"
	}
	choice.Host, choice.Member = members[best].Host, members[best]
	for i := range members {
		switch {
		case i == best:
		case reasons[i] != "":
			choice.Refused = append(choice.Refused, Refusal{members[i].Host, pass, reasons[i]})
		default:
			choice.Refused = append(choice.Refused, Refusal{members[i].Host, 0, "would do, at " + inPing(&members[i])})
		}
	}
	return choice
}

// roundPing returns a member's ping in whole milliseconds: smaller differences are
// noise, and a server compares milliseconds too.
func roundPing(m *Member) time.Duration { return m.Ping.Truncate(time.Millisecond) }

// farther reports whether a takes longer to answer than b. A member with unknown
// ping is the farthest.
func farther(a, b *Member) bool {
	if a.Pings == 0 || b.Pings == 0 {
		return a.Pings == 0 && b.Pings > 0
	}
	return roundPing(a) > roundPing(b)
}

func inPing(m *Member) string {
	if m.Pings == 0 {
		return "an unknown distance"
	}
	if m.Ping < time.Millisecond {
		return "under 1 ms"
	}
	return fmt.Sprintf("%d ms", m.Ping.Milliseconds())
}
