package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
)

// moment is a point in a log, or in time: now, unix seconds, "seconds,increment",
// "Timestamp(seconds, increment)", "seconds:increment", or RFC 3339. The zero value
// is none.
type moment struct {
	text string
	now  bool
	at   bson.Timestamp
	// whole is true if no increment was given: a second, not an entry.
	whole bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(text []byte) error {
	*m = moment{text: string(text)}
	switch m.text {
	case "":
		return nil
	case "now":
		m.now = true
		return nil
	}
	if t, err := time.Parse(time.RFC3339, m.text); err == nil {
		m.whole = true
		return m.set(t.Unix())
	}
	inner := m.text
	if s, ok := strings.CutPrefix(inner, "Timestamp("); ok {
		if inner, ok = strings.CutSuffix(s, ")"); !ok {
			return m.fault()
		}
	}
	inner = strings.Replace(inner, ":", ",", 1)
	seconds, increment, both := strings.Cut(inner, ",")
	t, err := strconv.ParseUint(strings.TrimSpace(seconds), 10, 32)
	if err != nil {
		return m.fault()
	}
	if m.whole = !both; both {
		i, err := strconv.ParseUint(strings.TrimSpace(increment), 10, 32)
		if err != nil {
			return m.fault()
		}
		m.at.I = uint32(i)
	}
	return m.set(int64(t))
}

func (m *moment) set(seconds int64) error {
	if seconds <= 0 || seconds > math.MaxUint32 {
		return m.fault()
	}
	m.at.T = uint32(seconds)
	return nil
}

func (m *moment) fault() error {
	return fmt.Errorf("%q is not a point in time: write now, unix seconds, 1700000000,3, Timestamp(1700000000, 3) or 2023-11-14T22:13:20Z", m.text)
}

// String writes what UnmarshalText reads.
func (m moment) String() string { return m.text }

// given reports whether there is a point in time, other than now.
func (m moment) given() bool { return m.at.T != 0 }

// last is the last timestamp that the moment stands for: of a whole second, that
// second's last.
func (m moment) last() bson.Timestamp {
	if m.whole {
		return bson.Timestamp{T: m.at.T, I: math.MaxUint32}
	}
	return m.at
}

// startCopy is the value of a link that begins with a copy.
const startCopy = "copy"

// startBack is the value of a link that is the way back of another, which may be named after a colon.
const startBack = "cutover"

// start is where a link begins: with a copy, at a moment, or where another link was cut over. The
// zero value means not given.
type start struct {
	moment
	said, copy, back bool
	// of is the link that was cut over, empty for the only one.
	of string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *start) UnmarshalText(text []byte) error {
	*s = start{said: true, copy: string(text) == startCopy}
	if s.copy {
		s.text = startCopy
		return nil
	}
	if name, of, named := strings.Cut(string(text), ":"); name == startBack {
		if named && !checkpoint.ValidLink(of) {
			return fmt.Errorf("%q: after the colon comes the name of the link that was cut over", text)
		}
		s.back, s.of, s.text = true, of, string(text)
		return nil
	}
	if err := s.moment.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w; or copy, to copy the source's data first; or cutover, for the way back of a link", err)
	}
	return nil
}

// hostAddress says where a host is connected to: NAME=ADDRESS, each with or without a
// port.
type hostAddress struct{ name, address string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *hostAddress) UnmarshalText(text []byte) error {
	name, address, _ := strings.Cut(string(text), "=")
	*h = hostAddress{strings.TrimSpace(name), strings.TrimSpace(address)}
	if h.name == "" || h.address == "" || strings.ContainsAny(h.address, "=, ") {
		return fmt.Errorf("%q is not of the form NAME=ADDRESS, as in db1:27017=localhost:37017", text)
	}
	return nil
}

// String writes what UnmarshalText reads.
func (h hostAddress) String() string { return h.name + "=" + h.address }

// tags are a set of tags of members, written as dc=east,disk=ssd.
type tags map[string]string

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *tags) UnmarshalText(text []byte) error {
	*t = tags{}
	for pair := range strings.SplitSeq(string(text), ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not a tag set: write NAME=VALUE, or several with commas", text)
		}
		(*t)[name] = value
	}
	return nil
}

// String writes what UnmarshalText reads.
func (t tags) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(t)) {
		pairs = append(pairs, name+"="+t[name])
	}
	return strings.Join(pairs, ",")
}
