package result

import (
	"fmt"
	"regexp"
	"strconv"
)

// EndKind says what an end of a run is.
type EndKind string

// The kinds of ends. The zero value is none: the run has no such end.
const (
	// EndMemory is a log in memory.
	EndMemory EndKind = "memory"
	// EndDiscard drops all input.
	EndDiscard EndKind = "discard"
	// EndNull is a server that acknowledges everything.
	EndNull EndKind = "null"
	// EndCalibrated is such a server that uses as much CPU as a real one.
	EndCalibrated EndKind = "calibrated"
	// EndEmbedded is an embedded set, not a real server, whatever version it emulates.
	EndEmbedded EndKind = "embedded"
	// EndReal is a real server.
	EndReal EndKind = "real"
)

// End is an end of a run: "memory", "embedded 5.0 (3 members)", "real 5.0.7 (1 member)".
// In JSON it is these words.
type End struct {
	Kind EndKind
	// Version is that of a set: a real server's own, or the one that an embedded set emulates.
	Version string
	// Members is how many members a set has, 0 where that is not known.
	Members int
}

// String is the end in words; empty where there is none.
func (e End) String() string {
	s := string(e.Kind)
	if e.Version != "" {
		s += " " + e.Version
	}
	if e.Members > 0 {
		s += fmt.Sprintf(" (%d %s)", e.Members, plural("member", e.Members))
	}
	return s
}

// Set reports whether the end is a replica set, embedded or real.
func (e End) Set() bool { return e.Kind == EndEmbedded || e.Kind == EndReal }

// MarshalText implements encoding.TextMarshaler.
func (e End) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// setWords is a set in words.
var setWords = regexp.MustCompile(`^(embedded|real)(?: (\d[^ ()]*))?(?: \((\d{1,9}) members?\))?$`)

// UnmarshalText implements encoding.TextUnmarshaler. Unknown words are an error: such
// ends could not be compared.
func (e *End) UnmarshalText(text []byte) error {
	s := string(text)
	switch kind := EndKind(s); kind {
	case "", EndMemory, EndDiscard, EndNull, EndCalibrated:
		*e = End{Kind: kind}
		return nil
	case EndEmbedded, EndReal:
	}
	parts := setWords.FindStringSubmatch(s)
	if parts == nil {
		return fmt.Errorf("an end %q is not known", s)
	}
	members, _ := strconv.Atoi(parts[3]) // none, or digits
	*e = End{Kind: EndKind(parts[1]), Version: parts[2], Members: members}
	return nil
}

// Mixed reports whether some ends of the runs are embedded sets and others real servers.
// A ratio of such runs says nothing: it is refused.
func Mixed(runs ...*Run) bool {
	return hasEnd(EndEmbedded, runs...) && hasEnd(EndReal, runs...)
}

// hasEnd reports whether an end of one of the runs is of a kind.
func hasEnd(kind EndKind, runs ...*Run) bool {
	for _, r := range runs {
		if r.Source.Kind == kind || r.Target.Kind == kind {
			return true
		}
	}
	return false
}

// OnEmbedded reports whether an end of one of the runs is an embedded set: its
// measurements are shown, but have no limits.
func OnEmbedded(runs ...*Run) bool { return hasEnd(EndEmbedded, runs...) }
