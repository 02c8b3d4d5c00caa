package fault

import (
	"fmt"
	"time"
)

// Kind is what a fault does.
type Kind int

const (
	// Latency carries everything later: "latency 5ms", "latency 5ms jitter=2ms".
	Latency Kind = iota + 1
	// Drop is a black hole: nothing gets through until it is healed. "drop".
	Drop
	// HalfOpen is a black hole in one direction: "half-open in", "half-open out".
	HalfOpen
	// Cut closes existing connections, and new ones at once. "cut".
	Cut
	// Reset breaks each connection off, even inside a message, after it has
	// carried a number of bytes in one direction: "reset after=120".
	Reset
	// Rate limits the bytes per second: "rate 1000".
	Rate
	// Freeze stalls an end as SIGSTOP would: connections are accepted, nothing
	// is answered, and its deadlines pass unnoticed until it is thawed.
	// "freeze".
	Freeze
)

var kindNames = map[Kind]string{
	Latency: "latency", Drop: "drop", HalfOpen: "half-open", Cut: "cut",
	Reset: "reset", Rate: "rate", Freeze: "freeze",
}

// String returns the word that names the kind in a text form.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Direction is one of a link's two, as seen from the end that is named first
// when the fault is set.
type Direction int

const (
	// Both is the default.
	Both Direction = iota
	// In is towards the end that is named first: "in".
	In
	// Out is away from the end that is named first: "out".
	Out
)

// String returns the word for the direction, "" for both.
func (d Direction) String() string {
	switch d {
	case Both:
		return ""
	case In:
		return "in"
	case Out:
		return "out"
	}
	return fmt.Sprintf("Direction(%d)", int(d))
}

// Opposite returns the same direction as seen from the other end.
func (d Direction) Opposite() Direction {
	switch d {
	case In:
		return Out
	case Out:
		return In
	case Both:
	}
	return d
}

// Fault is a fault of a link. Two faults that compare equal are the same.
// Fields that the kind does not name are zero.
type Fault struct {
	// Kind is the kind of fault.
	Kind Kind
	// Direction is the affected direction. HalfOpen needs one; Latency, Reset
	// and Rate may have one; for the others it is Both.
	Direction Direction
	// Delay is the one-way latency. Latency only.
	Delay time.Duration
	// Jitter is the most that is added to Delay, at random. Latency only.
	Jitter time.Duration
	// Bytes is the number of bytes after which a connection breaks (Reset), or
	// that are carried per second (Rate, at least 1).
	Bytes int64
}

// String returns the text form, which [Parse] reads back.
func (f Fault) String() string {
	s := f.Kind.String()
	switch f.Kind {
	case Latency:
		s += " " + f.Delay.String()
		if f.Jitter != 0 {
			s += " jitter=" + f.Jitter.String()
		}
	case Reset:
		s += fmt.Sprintf(" after=%d", f.Bytes)
	case Rate:
		s += fmt.Sprintf(" %d", f.Bytes)
	case Drop, HalfOpen, Cut, Freeze:
	}
	if f.Direction != Both {
		s += " " + f.Direction.String()
	}
	return s
}

// InvalidError reports an invalid fault.
type InvalidError struct {
	Fault Fault
	// What says which rule is broken.
	What string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("fault: %q is no fault: %s", e.Fault, e.What)
}

// maxDelay is the longest latency or jitter: longer ones amount to a drop, and
// sums must not overflow.
const maxDelay = 24 * time.Hour

// Validate returns an [*InvalidError] if a field has an invalid value, or one that the
// kind does not use.
func (f Fault) Validate() error {
	bare := Fault{Kind: f.Kind, Direction: f.Direction}
	what := ""
	switch f.Kind {
	case Latency:
		bare.Delay, bare.Jitter = f.Delay, f.Jitter
		switch {
		case f.Delay < 0 || f.Jitter < 0:
			what = "a time below 0"
		case f.Delay > maxDelay || f.Jitter > maxDelay:
			what = "a time above " + maxDelay.String()
		}
	case Reset:
		bare.Bytes = f.Bytes
		if f.Bytes < 0 {
			what = "a number of bytes below 0"
		}
	case Rate:
		bare.Bytes = f.Bytes
		if f.Bytes < 1 {
			what = "a rate below 1 byte a second, which drop stands for"
		}
	case HalfOpen:
		if f.Direction == Both {
			what = "no direction"
		}
	case Drop, Cut, Freeze:
		bare.Direction = Both
	default:
		what = "an unknown kind"
	}
	switch {
	case what != "":
	case f.Direction < Both || f.Direction > Out:
		what = "an unknown direction"
	case f != bare:
		what = "it has a field that its kind does not know"
	default:
		return nil
	}
	return &InvalidError{Fault: f, What: what}
}
