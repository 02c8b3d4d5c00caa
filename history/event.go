package history

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Kind is the kind of an event.
type Kind string

// The kinds.
const (
	OfSource     Kind = "source"
	OfDDL        Kind = "ddl"
	OfLease      Kind = "lease"
	OfControl    Kind = "control"
	OfCopy       Kind = "copy"
	OfTarget     Kind = "target"
	OfDivergence Kind = "divergence"
	Other        Kind = "other"
)

// Event is something that happened to a link.
type Event struct {
	// ID is greater than those of all earlier events of the link: in microseconds since the
	// epoch, by the clock of the process that has seen it.
	ID uint64 `json:"id"`
	// Seq is greater than those of all events that this process knew before. It is the ID, but
	// for an event that another process has seen before the newest one that was known here when it
	// was merged: such an event is later in the stream that followers get.
	Seq uint64    `json:"-"`
	At  time.Time `json:"at"`
	// Level is INFO, WARN or ERROR; of an event that is not logged it is DEBUG.
	Level   string `json:"level"`
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	// Fields are the attributes of the log message, with dots between nested keys. "left out" counts the
	// events of this message that are not here, because there were too many.
	Fields map[string]string `json:"fields"`
}

const (
	// mostEvents and mostBytes limit the events in memory, mostOften how many of one message
	// there may be within often. A longer text is cut.
	mostEvents = 1000
	mostBytes  = 512 << 10
	mostOften  = 20
	often      = time.Minute
	mostText   = 400
	mostFields = 16
	mostNames  = 200
)

// keyLeftOut counts the events that were left out.
const keyLeftOut = "left out"

// events are those of a link, the oldest first.
type events struct {
	list  []Event
	bytes int
	// often counts the last events by message. It has one for each constant text in this
	// program, and no more than mostNames.
	often map[string]*burst
	// last is the greatest ID and Seq so far.
	last uint64
}

// burst is how often a message came since a time, and how many of them were left out.
type burst struct {
	since   time.Time
	n, left int
}

// size is the approximate size of an event, in bytes.
func (e *Event) size() int {
	n := 120 + len(e.Message)
	for key, value := range e.Fields {
		n += 40 + len(key) + len(value)
	}
	return n
}

// add adds an event, and returns false if there were too many of its message.
func (l *events) add(e Event) (Event, bool) {
	b := l.burst(e.Message, e.At)
	if b.n++; b.n > mostOften {
		b.left++
		return Event{}, false
	}
	e.Message, e.Fields = cut(e.Message), cutFields(e.Fields)
	if b.left > 0 {
		e.Fields[keyLeftOut] = strconv.Itoa(b.left)
		b.left = 0
	}
	l.last = max(l.last+1, uint64(max(0, e.At.UnixMicro())))
	e.ID, e.Seq = l.last, l.last
	l.list = append(l.list, e)
	l.bytes += e.size()
	l.limit()
	return e, true
}

// burst returns the count of a message, started over if it is old.
func (l *events) burst(message string, now time.Time) *burst {
	if l.often == nil || len(l.often) >= mostNames && l.often[message] == nil {
		l.often = map[string]*burst{}
	}
	b := l.often[message]
	if b == nil {
		b = &burst{since: now}
		l.often[message] = b
	}
	if d := now.Sub(b.since); d < 0 || d >= often {
		b.since, b.n = now, 0
	}
	return b
}

// limit drops the oldest events beyond the limits.
func (l *events) limit() {
	n := 0
	for n < len(l.list) && (len(l.list)-n > mostEvents || l.bytes > mostBytes) {
		l.bytes -= l.list[n].size()
		n++
	}
	if n > 0 {
		l.list = slices.Delete(l.list, 0, n)
	}
}

// byID and bySeq order events.
func byID(a, b Event) int  { return cmp.Compare(a.ID, b.ID) }
func bySeq(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) }

// merge adds events of another process, or of an earlier one: those that are not here.
func (l *events) merge(others []Event) {
	others = slices.SortedStableFunc(slices.Values(others), byID)
	here := len(l.list)
	for _, e := range others {
		if _, known := slices.BinarySearchFunc(l.list[:here], e, byID); known || here < len(l.list) && l.list[len(l.list)-1].ID == e.ID {
			continue
		}
		l.last = max(l.last+1, e.ID)
		e.Seq = l.last
		l.list = append(l.list, e)
		l.bytes += e.size()
	}
	slices.SortFunc(l.list, byID)
	l.limit()
}

// after returns the events that became known after the one with a Seq, in that order. They are
// shared, and must not be changed.
func (l *events) after(seq uint64) []Event {
	if seq >= l.last {
		return nil
	}
	var list []Event
	for i := range l.list {
		if l.list[i].Seq > seq {
			list = append(list, l.list[i])
		}
	}
	slices.SortFunc(list, bySeq)
	return list
}

// cut limits the length of a text, at the end of a character.
func cut(s string) string {
	if len(s) <= mostText {
		return s
	}
	n := mostText
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// cutFields returns a copy of fields, with limited texts, without those beyond a limit.
func cutFields(fields map[string]string) map[string]string {
	out := make(map[string]string, min(len(fields), mostFields)+1)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if len(out) == mostFields {
			break
		}
		out[cut(key)] = cut(fields[key])
	}
	return out
}
