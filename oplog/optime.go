package oplog

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Terms that are not the result of an election.
const (
	// UninitializedTerm is the term of an optime without one: an entry of protocol
	// version 0, or the null optime that starts a chain.
	UninitializedTerm int64 = -1
	// InitialTerm is the term before the first election.
	InitialTerm int64 = 0
)

// OpTime is a point in a replica set's history: the timestamp of an entry and the
// term of the primary that wrote it. Two histories may share a timestamp, but never
// an OpTime. The zero value is the null optime of term 0.
type OpTime struct {
	// TS is unique within one history and ascends from entry to entry.
	TS bson.Timestamp `bson:"ts"`
	// Term is the election term, UninitializedTerm if there is none.
	Term int64 `bson:"t"`
}

// NewOpTime returns the optime of seconds, increment and term.
func NewOpTime(seconds, increment uint32, term int64) OpTime {
	return OpTime{TS: bson.Timestamp{T: seconds, I: increment}, Term: term}
}

// Compare orders optimes as the server does: by term, then by timestamp; and by
// timestamp alone if either has no term.
func (o OpTime) Compare(p OpTime) int {
	if o.Term != p.Term && o.Term != UninitializedTerm && p.Term != UninitializedTerm {
		return cmp.Compare(o.Term, p.Term)
	}
	return CompareTimestamps(o.TS, p.TS)
}

// Equal reports whether o and p are the same point, by the rule of Compare.
func (o OpTime) Equal(p OpTime) bool { return o.Compare(p) == 0 }

// Before reports whether o comes before p, by the rule of Compare.
func (o OpTime) Before(p OpTime) bool { return o.Compare(p) < 0 }

// After reports whether o comes after p, by the rule of Compare.
func (o OpTime) After(p OpTime) bool { return o.Compare(p) > 0 }

// IsNull reports whether o is the null optime: its timestamp is zero.
func (o OpTime) IsNull() bool { return o.TS.T == 0 && o.TS.I == 0 }

// String returns seconds, increment and term, as in "1700000000:3 t5".
func (o OpTime) String() string {
	return fmt.Sprintf("%d:%d t%d", o.TS.T, o.TS.I, o.Term)
}

// ParseOpTime parses the result of String. Without a term, as in "1700000000:3",
// the term is UninitializedTerm.
func ParseOpTime(s string) (OpTime, error) {
	stamp, term, hasTerm := strings.Cut(s, " t")
	seconds, increment, ok := strings.Cut(stamp, ":")
	o := OpTime{Term: UninitializedTerm}
	if ok {
		t, errT := strconv.ParseUint(seconds, 10, 32)
		i, errI := strconv.ParseUint(increment, 10, 32)
		ok = errT == nil && errI == nil
		o.TS = bson.Timestamp{T: uint32(t), I: uint32(i)}
	}
	if ok && hasTerm {
		n, err := strconv.ParseInt(term, 10, 64)
		ok = err == nil
		o.Term = n
	}
	if !ok {
		return OpTime{}, fmt.Errorf("parse optime %q: want SECONDS:INCREMENT, or SECONDS:INCREMENT tTERM", s)
	}
	return o, nil
}

// LaterTimestamp returns the later one of two timestamps.
func LaterTimestamp(a, b bson.Timestamp) bson.Timestamp {
	if CompareTimestamps(a, b) < 0 {
		return b
	}
	return a
}

// CompareTimestamps orders timestamps by seconds, then by increment.
func CompareTimestamps(a, b bson.Timestamp) int {
	if c := cmp.Compare(a.T, b.T); c != 0 {
		return c
	}
	return cmp.Compare(a.I, b.I)
}
