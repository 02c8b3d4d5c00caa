package mongosim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/fault"
)

// ErrAction is returned for a text that is not an action.
var ErrAction = errors.New("mongosim: no such action")

// Action is something that [Set.Do] does to a set, with a text form for scenario files.
// N is the number of a member or "primary"; A and B are that or "client".
//
//	kill N                 crash it; writes that are not durable are lost
//	stop N                 shut it down cleanly
//	start N                start it again
//	freeze N, thaw N       stop all traffic, as SIGSTOP does; resume it
//	stepdown               make the primary step down, wait for the next one
//	cut A B                break the link
//	link A B FAULT         give the link a fault, such as latency 5ms
//	heal A B, heal         end the faults of a link, of all links
//	skew N DURATION        set how far its clock is ahead
//	diskfull N on|off      refuse its writes
//	failcommand N JSON     configureFailPoint failCommand with {mode, data}
type Action struct {
	// Verb is the first word of the text.
	Verb string
	// A and B are the ends or the member: a number, "primary" or "client".
	A, B string
	// Fault is the argument of link, By of skew, On of diskfull, Arg of failcommand.
	Fault fault.Fault
	By    time.Duration
	On    bool
	Arg   bson.Raw
}

// form describes the arguments of a verb: the number of words, or the minimum, of
// which the first two may be the ends of a link. usage is its text in messages.
type form struct {
	words      int
	more, link bool
	usage      string
}

var forms = map[string]form{
	"kill":        {words: 1, usage: "kill N"},
	"stop":        {words: 1, usage: "stop N"},
	"start":       {words: 1, usage: "start N"},
	"freeze":      {words: 1, usage: "freeze N"},
	"thaw":        {words: 1, usage: "thaw N"},
	"stepdown":    {usage: "stepdown alone"},
	"cut":         {words: 2, link: true, usage: "cut A B"},
	"link":        {words: 3, more: true, link: true, usage: "link A B FAULT"},
	"heal":        {words: 2, link: true, usage: "heal A B, or heal alone"},
	"skew":        {words: 2, usage: "skew N DURATION"},
	"diskfull":    {words: 2, usage: "diskfull N on|off"},
	"failcommand": {words: 2, more: true, usage: "failcommand N JSON"},
}

// ParseAction parses the text form of an Action.
func ParseAction(text string) (Action, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return Action{}, fmt.Errorf("%w: empty text", ErrAction)
	}
	verb, args := words[0], words[1:]
	form, ok := forms[verb]
	switch {
	case !ok:
		return Action{}, fmt.Errorf("%w: %q: unknown verb; known are %s", ErrAction, text, strings.Join(slices.Sorted(maps.Keys(forms)), ", "))
	case verb == "heal" && len(args) == 0:
		return Action{Verb: verb}, nil
	case len(args) < form.words, len(args) > form.words && !form.more:
		return Action{}, fmt.Errorf("%w: %q: want %s", ErrAction, text, form.usage)
	}
	a := Action{Verb: verb}
	var err error
	if form.words > 0 {
		a.A, err = parseEnd(args[0], form.link)
	}
	if err == nil && form.link {
		if a.B, err = parseEnd(args[1], true); err == nil && a.A == a.B {
			err = fmt.Errorf("a link has two ends, not %q twice", a.A)
		}
	}
	if err == nil {
		switch verb {
		case "link":
			a.Fault, err = fault.Parse(strings.Join(args[2:], " "))
		case "skew":
			if a.By, err = time.ParseDuration(args[1]); err != nil {
				err = fmt.Errorf("%q is no duration, such as 3s or -1h", args[1])
			}
		case "diskfull":
			a.On = args[1] == "on"
			if !a.On && args[1] != "off" {
				err = fmt.Errorf("%q is neither on nor off", args[1])
			}
		case "failcommand":
			a.Arg, err = parseDocument(after(text, 2))
		}
	}
	if err != nil {
		return Action{}, fmt.Errorf("%w: %q: %w", ErrAction, text, err)
	}
	return a, nil
}

func parseEnd(word string, link bool) (string, error) {
	if word == "primary" || link && word == clientName {
		return word, nil
	}
	// Each member has one name only.
	if n, err := strconv.Atoi(word); err != nil || n < 0 || strconv.Itoa(n) != word {
		want := "its number or primary"
		if link {
			want = "its number, primary or client"
		}
		return "", fmt.Errorf("%q is no member; want %s", word, want)
	}
	return word, nil
}

// after returns the text after its first n words, spaces included.
func after(text string, n int) string {
	for range n {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
		text = text[strings.IndexFunc(text, unicode.IsSpace):]
	}
	return strings.TrimSpace(text)
}

func parseDocument(text string) (bson.Raw, error) {
	if !json.Valid([]byte(text)) { // else text after a document would be ignored
		return nil, fmt.Errorf("%q is no JSON", text)
	}
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &doc); err != nil {
		return nil, fmt.Errorf("%q is no document: %w", text, err)
	}
	return bson.Marshal(doc)
}

// String returns the text form, which ParseAction parses.
func (a Action) String() string {
	words := []string{a.Verb}
	for _, w := range []string{a.A, a.B} {
		if w != "" {
			words = append(words, w)
		}
	}
	switch a.Verb {
	case "link":
		words = append(words, a.Fault.String())
	case "skew":
		words = append(words, a.By.String())
	case "diskfull":
		words = append(words, map[bool]string{true: "on", false: "off"}[a.On])
	case "failcommand":
		words = append(words, a.Arg.String())
	}
	return strings.Join(words, " ")
}

// Do performs an action. Starting a member that runs, and killing or stopping one that is
// down, are errors; all other actions are idempotent.
func (s *Set) Do(ctx context.Context, a Action) error {
	if err := s.do(ctx, a); err != nil {
		return fmt.Errorf("mongosim: do %q: %w", a, err)
	}
	return nil
}

func (s *Set) do(ctx context.Context, a Action) error {
	switch a.Verb {
	case "stepdown":
		return s.StepDown(ctx)
	case "cut", "link", "heal":
		return s.doLink(a)
	}
	m, err := s.end(a.A)
	if err != nil {
		return err
	}
	switch a.Verb {
	case "kill":
		return m.Kill()
	case "stop":
		return m.Stop(ctx)
	case "start":
		return m.Start()
	case "freeze":
		m.Freeze()
	case "thaw":
		m.Thaw()
	case "skew":
		m.SkewClock(a.By)
	case "diskfull":
		m.DiskFull(a.On)
	case "failcommand":
		return m.FailCommand(ctx, a.Arg)
	default:
		return ErrAction
	}
	return nil
}

func (s *Set) doLink(a Action) error {
	if a.Verb == "heal" && a.A == "" {
		s.HealAll()
		return nil
	}
	ends := [2]int{}
	for i, word := range []string{a.A, a.B} {
		if word == clientName {
			ends[i] = Client
			continue
		}
		m, err := s.end(word)
		if err != nil {
			return err
		}
		ends[i] = m.id
	}
	switch a.Verb {
	case "cut":
		return s.Fault(ends[0], ends[1], fault.Fault{Kind: fault.Cut})
	case "heal":
		return s.Fault(ends[0], ends[1])
	}
	return s.Fault(ends[0], ends[1], a.Fault)
}

// end resolves a word to a member.
func (s *Set) end(word string) (*Member, error) {
	if word == "primary" {
		if m := s.Primary(); m != nil {
			return m, nil
		}
		return nil, ErrNoPrimary
	}
	n, err := strconv.Atoi(word)
	all := s.Members()
	if err != nil || n < 0 || n >= len(all) {
		return nil, fmt.Errorf("no member %q; they are 0 to %d", word, len(all)-1)
	}
	return all[n], nil
}
