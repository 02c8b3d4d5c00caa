package syncsource

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/oplog"
)

// The model of Choose: it computes the chosen member by filtering sets of members
// step by step, without reasons.

func drawMember(t *rapid.T, i int) Member {
	optimes := rapid.Custom(func(t *rapid.T) oplog.OpTime {
		return oplog.NewOpTime(uint32(rapid.IntRange(0, 80).Draw(t, "seconds")), uint32(rapid.IntRange(0, 2).Draw(t, "increment")),
			int64(rapid.SampledFrom([]int{-1, 1, 2, 2, 2, 3}).Draw(t, "term")))
	})
	odd := func(name string) bool { return rapid.IntRange(0, 7).Draw(t, name) == 0 }
	m := Member{
		Host: fmt.Sprintf("h%d", i), Asked: !odd("unasked"), Arbiter: odd("arbiter"), Hidden: odd("hidden"), NonVoting: odd("nonvoting"),
		NoIndexes: odd("noindexes"), Stranger: odd("stranger"), Applied: optimes.Draw(t, "applied"),
		State: rapid.SampledFrom([]oplog.MemberState{
			oplog.MemberPrimary, oplog.MemberSecondary, oplog.MemberSecondary, oplog.MemberSecondary, oplog.MemberRecovering, oplog.MemberUnknown,
		}).Draw(t, "state"),
		Delay: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 5, 10}).Draw(t, "delay")) * time.Second,
		Ping:  time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ping")) * time.Microsecond,
		Pings: rapid.IntRange(0, 3).Draw(t, "pings"), Term: int64(rapid.IntRange(1, 2).Draw(t, "knows")),
		Tags: map[string]string{},
	}
	if m.Arbiter {
		m.State = oplog.MemberArbiter
	}
	if m.State == oplog.MemberPrimary {
		// Only a member with a priority can become primary.
		m.Hidden, m.NonVoting, m.NoIndexes, m.Delay = false, false, false, 0
	}
	if odd("down") {
		m.Fault = "cannot be reached"
	}
	for _, tag := range []string{"a", "b"} {
		if rapid.Bool().Draw(t, "tag "+tag) {
			m.Tags[tag] = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value")
		}
	}
	return m
}

func drawQuestion(t *rapid.T) (View, Query) {
	var v View
	q := Query{Now: scenarioNow, Denied: Denylist{}}
	for i := range rapid.IntRange(0, 6).Draw(t, "members") {
		v.Members = append(v.Members, drawMember(t, i))
		if rapid.IntRange(0, 5).Draw(t, "denied") == 0 {
			q.Denied[fmt.Sprintf("h%d", i)] = Denial{Until: scenarioNow.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "until")) * time.Second)}
		}
	}
	v.Answers = rapid.SampledFrom([]int{100, 100, 100, 7}).Draw(t, "answers")
	v.NoChaining = rapid.IntRange(0, 5).Draw(t, "nochaining") == 0
	q.LastFetched = oplog.NewOpTime(uint32(rapid.IntRange(0, 60).Draw(t, "fetched")), 1, int64(rapid.IntRange(1, 2).Draw(t, "term")))
	q.Rules = Rules{
		Mode: rapid.SampledFrom([]Mode{
			"", "", "", ModePrimary, ModePrimaryPreferred, ModeSecondary, ModeSecondaryPreferred, ModeNearest,
		}).Draw(t, "mode"),
		MaxLag:      10 * time.Second,
		AcceptEqual: rapid.Bool().Draw(t, "equal"),
		Delay:       time.Duration(rapid.SampledFrom([]int{0, 7}).Draw(t, "our delay")) * time.Second,
	}
	if q.Rules.Mode != ModePrimary && rapid.IntRange(0, 2).Draw(t, "tagged") == 0 {
		q.Rules.TagSets = []map[string]string{{"a": "1", "b": "2"}, {"b": "1"}}
	}
	return v, q
}

// modelKeep returns the members of a set that satisfy ok.
func modelKeep(v View, set []int, ok func(m Member) bool) []int {
	return slices.DeleteFunc(slices.Clone(set), func(i int) bool { return !ok(v.Members[i]) })
}

func modelChoose(v View, q Query) string {
	all := make([]int, 0, len(v.Members))
	for i := range v.Members {
		all = append(all, i)
	}
	at := func(i int) Member { return v.Members[i] }
	keep := func(set []int, ok func(m Member) bool) []int { return modelKeep(v, set, ok) }
	set := keep(all, func(m Member) bool { return !m.Stranger })
	if len(set) == 0 || v.Answers < 2*len(set) {
		return ""
	}
	set = keep(set, func(m Member) bool { return m.Asked && m.Fault == "" })
	primaries := keep(set, func(m Member) bool { return m.State == oplog.MemberPrimary })
	// A stable sort, so that the first of two with the same term is used.
	slices.SortStableFunc(primaries, func(a, b int) int { return int(at(b).Term - at(a).Term) })
	primary := -1
	if len(primaries) > 0 {
		primary = primaries[0]
	}
	mode := q.Rules.Mode
	if mode == "" {
		mode = ModeNearest
		if v.NoChaining {
			mode = ModePrimary
		}
	}
	free := func(m Member) bool { return !q.Denied[m.Host].Until.After(q.Now) }
	if mode == ModePrimary || mode == ModePrimaryPreferred {
		if primary >= 0 && free(at(primary)) && at(primary).Applied.Compare(q.LastFetched) >= 0 {
			return at(primary).Host
		}
		if mode == ModePrimary {
			return ""
		}
	}
	set = keep(set, free)
	set = keep(set, func(m Member) bool { return m.State.Readable() && !m.Arbiter })
	set = keep(set, func(m Member) bool { return !m.NoIndexes })
	if mode == ModeSecondary {
		set = keep(set, func(m Member) bool { return m.State == oplog.MemberSecondary })
	}
	return modelPass(v, q, mode, set, primary)
}

// modelPass chooses among members that may be read.
func modelPass(v View, q Query, mode Mode, set []int, primary int) string {
	keep := func(set []int, ok func(m Member) bool) []int { return modelKeep(v, set, ok) }
	least := []int{1}
	if q.Rules.AcceptEqual {
		least = []int{1, 0}
	}
	for _, order := range least {
		fresh := keep(set, func(m Member) bool { return m.Applied.Compare(q.LastFetched) >= order })
		first := keep(fresh, func(m Member) bool {
			return !m.Hidden && m.Delay <= q.Rules.Delay &&
				(mode != ModeSecondaryPreferred || m.State == oplog.MemberSecondary)
		})
		if primary >= 0 {
			newest := v.Members[primary].Applied
			oldest := oplog.OpTime{Term: newest.Term}
			if newest.TS.T > 10 {
				oldest.TS.T = newest.TS.T - 10
			}
			first = keep(first, func(m Member) bool { return m.Applied.Compare(oldest) >= 0 })
		}
		for _, pass := range [][]int{first, fresh} {
			groups := [][]int{pass}
			if len(q.Rules.TagSets) > 0 {
				groups = nil
				for _, want := range q.Rules.TagSets {
					groups = append(groups, keep(pass, func(m Member) bool {
						for k, x := range want {
							if m.Tags[k] != x && (mode != ModeSecondaryPreferred || m.State != oplog.MemberPrimary) {
								return false
							}
						}
						return true
					}))
				}
			}
			for _, group := range groups {
				if len(group) > 0 {
					return modelNearest(v, group, primary)
				}
			}
		}
	}
	return ""
}

func modelNearest(v View, group []int, primary int) string {
	ms := func(i int) int64 {
		if v.Members[i].Pings == 0 {
			return 1 << 40
		}
		return v.Members[i].Ping.Milliseconds()
	}
	best := group[0]
	for _, i := range group {
		if ms(i) <= ms(best) {
			best = i
		}
	}
	if slices.Contains(group, primary) && ms(primary) < 1<<40 && ms(primary)-ms(best) <= 5 {
		best = primary
	}
	return v.Members[best].Host
}

func TestChooseAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, q := drawQuestion(t)
		got := Choose(v, q)
		if want := modelChoose(v, q); got.Host != want {
			t.Fatalf("chose %q, the model %q: %s", got.Host, want, choiceText(got))
		}
		// Every member is chosen or refused once, in order.
		var rest []string
		for i := range v.Members {
			if v.Members[i].Host != got.Host {
				rest = append(rest, v.Members[i].Host)
			}
		}
		var refused []string
		for _, r := range got.Refused {
			refused = append(refused, r.Host)
			if r.Reason == "" || r.pass < 0 || r.pass > 2 {
				t.Fatalf("refusal without a reason: %+v", r)
			}
		}
		if !slices.Equal(rest, refused) {
			t.Fatalf("chose %q, refused %v of %v", got.Host, refused, rest)
		}
		if got.Host != "" && got.Candidates == 0 {
			t.Fatal("a choice among no candidates")
		}
		eligible := eligible(v, q.Rules)
		if got.Host != "" && !slices.Contains(eligible, got.Host) {
			t.Fatalf("chose %q, eligible are %v", got.Host, eligible)
		}
		// Each is chosen if it alone can be read from, and neither denied nor out of date.
		for _, host := range eligible {
			only := v
			only.Members, only.Settled = slices.Clone(v.Members), true
			for i := range only.Members {
				if m := &only.Members[i]; m.Host != host {
					m.Fault = "cannot be reached"
				} else {
					m.Applied = oplog.NewOpTime(1000, 0, 1000)
				}
			}
			q := q
			q.Denied, q.Rules.AcceptEqual = nil, true
			if choice := Choose(only, q); choice.Host != host {
				t.Fatalf("%q is eligible, and not chosen: %s", host, choiceText(choice))
			}
		}
	})
}

// TestChangeSettles: the member chosen from a View is not to be left by the same
// View.
func TestChangeSettles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, q := drawQuestion(t)
		first := Choose(v, q)
		if first.Host == "" {
			return
		}
		q.Current = first.Host
		for name, verdict := range map[string]Verdict{"error": shouldChangeOnError(v, q), "ping": pingShouldChange(v, q)} {
			if !verdict.Change {
				continue
			}
			// A source of the second pass is left as soon as the first pass has a
			// candidate, which is never so at the time of the choice.
			t.Fatalf("%s: %s was chosen (%s) and is to be left: %s", name, first.Host, first.Reason, verdict.Reason)
		}
	})
}
