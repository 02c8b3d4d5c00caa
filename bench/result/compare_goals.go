package result

import (
	"fmt"
	"strings"
)

func (c *comparison) goals(old, now *Goal) {
	switch {
	case now == nil:
		c.note(old.Name, "goal", "the newer report does not have it", true)
		return
	case old == nil:
		c.note(now.Name, "goal", "the older report does not have it", false)
		return
	case now.Skipped != "" && old.Skipped == "":
		c.note(old.Name, "goal", "it was measured, and is not now: "+now.Skipped, true)
		return
	case old.Skipped != "":
		if now.Skipped == "" {
			c.note(old.Name, "goal", "it was not measured before: "+old.Skipped, false)
		}
		return
	}
	if why := goalsDiffer(old, now); why != "" {
		c.note(old.Name, "goal", "not the same goal, not compared: "+why, false)
		return
	}
	kind := kindOf(now.Unit)
	if c.elsewhere && kind == absolute {
		return
	}
	var worse bool
	switch {
	case now.Embedded:
	case kind == allocations:
		worse = grown(old.Measured, now.Measured, fewAllocs)
	case kind == proportion && now.Most != nil:
		worse = now.Measured > old.Measured*(1+lessRatio)
	case kind == proportion:
		worse = now.Measured < old.Measured*(1-lessRatio)
	}
	c.figure(old.Name, "goal, "+orNone(now.Unit), old.Measured, now.Measured, worse, goalNote(old, now))
}

// goalNote describes a change of the goal itself.
func goalNote(old, now *Goal) string {
	var notes []string
	if !same(old.Least, now.Least) || !same(old.Most, now.Most) {
		notes = append(notes, "its threshold was changed")
	}
	switch {
	case now.Embedded:
		notes = append(notes, "embedded, no limit")
	case old.Met() && !now.Met():
		notes = append(notes, "was met, is not now")
	case !old.Met() && now.Met():
		notes = append(notes, "is met now")
	}
	return strings.Join(notes, "; ")
}

func goalsDiffer(old, now *Goal) string {
	switch {
	case old.Embedded != now.Embedded:
		return "an end is embedded in one of them"
	case old.Unit != now.Unit:
		return fmt.Sprintf("unit: %s, now %s", orNone(old.Unit), orNone(now.Unit))
	case (old.Least == nil) != (now.Least == nil):
		return "more was better in one of them, and less in the other"
	}
	return ""
}

func same(a, b *float64) bool { return a == b || a != nil && b != nil && *a == *b }

// unitKind says with which figures those of a unit can be compared.
type unitKind int

const (
	absolute    unitKind = iota // the machine's too: time, memory
	proportion                  // of two measurements within a run of the harness
	allocations                 // counted
)

func kindOf(unit string) unitKind {
	switch {
	case unit == "×", unit == "%", unit == "dearest/cheapest":
		return proportion
	case strings.HasPrefix(unit, "allocs/"):
		return allocations
	}
	return absolute
}
