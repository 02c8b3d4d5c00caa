package fault

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseError reports a text that is not a fault.
type ParseError struct {
	// Text is all of it.
	Text string
	// What describes the error.
	What string
	// Known are the valid words, if the error is about a word.
	Known []string
}

func (e *ParseError) Error() string {
	s := fmt.Sprintf("fault: parse %q: %s", e.Text, e.What)
	if len(e.Known) > 0 {
		s += "; known are " + strings.Join(e.Known, ", ")
	}
	return s
}

// The words that may follow each kind. DURATION is as time.ParseDuration has it.
var arguments = map[Kind][]string{
	Latency:  {"DURATION", "jitter=DURATION", "in", "out"},
	Drop:     {},
	HalfOpen: {"in", "out"},
	Cut:      {},
	Reset:    {"after=BYTES", "in", "out"},
	Rate:     {"BYTES", "in", "out"},
	Freeze:   {},
}

// Parse reads a fault's text form: the word for its kind, then its values in
// any order.
//
//	latency DURATION [jitter=DURATION] [in|out]
//	drop
//	half-open in|out
//	cut
//	reset after=BYTES [in|out]
//	rate BYTES [in|out]
//	freeze
//
// A text that is none of these is a [*ParseError], one with an impossible value
// an [*InvalidError].
func Parse(text string) (Fault, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return Fault{}, &ParseError{Text: text, What: "no word", Known: knownKinds()}
	}
	var f Fault
	for kind, name := range kindNames {
		if name == words[0] {
			f.Kind = kind
		}
	}
	if f.Kind == 0 {
		return Fault{}, &ParseError{Text: text, What: fmt.Sprintf("unknown word %q", words[0]), Known: knownKinds()}
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		form, what := f.set(word)
		if what == "" && seen[form] {
			what = form + " twice"
		}
		if what != "" {
			known := slices.Clone(arguments[f.Kind])
			return Fault{}, &ParseError{Text: text, What: what, Known: known}
		}
		seen[form] = true
	}
	if f.Kind == HalfOpen && f.Direction == Both {
		return Fault{}, &ParseError{Text: text, What: "no direction", Known: slices.Clone(arguments[f.Kind])}
	}
	for _, form := range arguments[f.Kind] {
		if strings.HasPrefix(form, "jitter") || form == "in" || form == "out" || seen[form] {
			continue
		}
		return Fault{}, &ParseError{Text: text, What: "no " + form}
	}
	if err := f.Validate(); err != nil {
		return Fault{}, err
	}
	return f, nil
}

// set reads one word after the kind. It returns the form of the word, or the
// fault.
func (f *Fault) set(word string) (form, what string) {
	key, value, named := strings.Cut(word, "=")
	if !named {
		key, value = "", word
	}
	for _, form := range arguments[f.Kind] {
		var err error
		switch {
		case form == word: // a direction
			f.Direction = In
			if word == "out" {
				f.Direction = Out
			}
			return "a direction", ""
		case form == "DURATION" && !named && word != "in" && word != "out":
			f.Delay, err = time.ParseDuration(value)
		case form == "jitter=DURATION" && key == "jitter":
			f.Jitter, err = time.ParseDuration(value)
		case form == "BYTES" && !named && word != "in" && word != "out", form == "after=BYTES" && key == "after":
			f.Bytes, err = strconv.ParseInt(value, 10, 64)
		default:
			continue
		}
		if err != nil {
			return form, fmt.Sprintf("%q is not %s", word, form)
		}
		return form, ""
	}
	return "", fmt.Sprintf("unknown word %q after %s", word, f.Kind)
}

func knownKinds() []string {
	var names []string
	for _, name := range kindNames {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
