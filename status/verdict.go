package status

import (
	"log/slog"
	"time"
)

// Level says how much a verdict matters.
type Level string

// The levels, the best first.
const (
	// Good: the target is what the source is, or this process stands by. Nothing to do.
	Good Level = "good"
	// Working: the link is on the way there by itself.
	Working Level = "working"
	// Attention: the link continues, but something should be done.
	Attention Level = "attention"
	// Unknown: what matters is not known now.
	Unknown Level = "unknown"
	// Broken: the link does not continue, or does not mirror everything, until something is done.
	Broken Level = "broken"
)

// Verdict is the state of a link in one sentence.
type Verdict struct {
	// Name is that of a section of docs/troubleshooting.md.
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Sentence says how it is; Next what an operator can do, usually a command, empty if
	// nothing is to be done.
	Sentence string `json:"sentence"`
	Next     string `json:"next,omitempty"`
	// Since is when it became so, as far as that is known: at the earliest the start of this
	// process.
	Since time.Time `json:"since"`
	// Also are the sentences of what else holds now and is not good, the most important first.
	Also []string `json:"also"`
}

// VerdictChanged announces another verdict, once it has lasted for [verdictSettles].
type VerdictChanged struct {
	// From is the name of the one that was announced before, empty for the first.
	From string
	To   Verdict
}

// Message implements event.Event.
func (VerdictChanged) Message() string { return "verdict" }

// Level implements event.Event. A verdict is never a warning of its own: what it judges by
// has been announced as one.
func (VerdictChanged) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e VerdictChanged) LogValue() slog.Value {
	const keyFrom, keyTo, keyLevel, keySentence, keyNext = "from", "to", "level", "sentence", "next"
	attrs := []slog.Attr{
		slog.String(keyTo, e.To.Name), slog.String(keyLevel, string(e.To.Level)), slog.String(keySentence, e.To.Sentence),
	}
	if e.From != "" {
		attrs = append(attrs, slog.String(keyFrom, e.From))
	}
	if e.To.Next != "" {
		attrs = append(attrs, slog.String(keyNext, e.To.Next))
	}
	return slog.GroupValue(attrs...)
}

// verdictSettles is how long a verdict must last to be announced.
const verdictSettles = 3 * time.Second

// judge adds the verdict: the first condition of the table that holds. The tracker is locked.
func (t *Tracker) judge(s *Snapshot) {
	if t.holding == nil {
		t.holding = map[string]time.Time{}
	}
	v := Verdict{Also: []string{}}
	for i := range conditions {
		c := &conditions[i]
		sentence, since := c.holds(s)
		if sentence == "" {
			delete(t.holding, c.name)
			continue
		}
		first, known := t.holding[c.name]
		if !known {
			first = s.At
			t.holding[c.name] = first
		}
		if since.IsZero() {
			since = first
		}
		s.unwell = s.unwell || c.unwell != nil && c.unwell(s)
		switch {
		case v.Name == "":
			v.Name, v.Level, v.Sentence, v.Since = c.name, c.level, sentence, since.UTC()
			if c.window {
				v.Sentence += s.oplogLasts()
			}
			if c.next != nil {
				v.Next = c.next(s)
			}
		case c.level != Good:
			v.Also = append(v.Also, sentence)
		}
	}
	if v.Name == "" {
		// A state that this table forgets; a test holds that there is none.
		v.Name, v.Level, v.Sentence, v.Since = "unknown", Unknown, "In state "+s.State+s.because()+".", s.Since
	}
	s.Verdict = v
}

// settled returns the change to announce, if there is one: the verdict's name is another
// than that of the last one announced, and has been for a while.
func (t *Tracker) settled(v *Verdict, now time.Time) (VerdictChanged, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.Name != t.verdict {
		t.verdict, t.verdictAt = v.Name, now
	}
	if v.Name == t.announced || now.Sub(t.verdictAt) < verdictSettles {
		return VerdictChanged{}, false
	}
	change := VerdictChanged{From: t.announced, To: *v}
	t.announced = v.Name
	return change, true
}
