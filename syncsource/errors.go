package syncsource

import (
	"errors"
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// ErrNoSource reports that no member can be read from at present. Retry after
// RetryInterval.
var ErrNoSource = errors.New("no member to read from")

// NoSourceError is an ErrNoSource with its reasons. It also wraps the errors of
// members that were asked.
type NoSourceError struct {
	Reason  string
	Refused []Refusal
	// Asked has the errors of the members that were asked.
	Asked []error
}

func (e *NoSourceError) Error() string {
	return fmt.Sprintf("%v: %s%s", ErrNoSource, e.Reason, list(e.Refused))
}

// Unwrap returns ErrNoSource and the members' errors.
func (e *NoSourceError) Unwrap() []error { return append([]error{ErrNoSource}, e.Asked...) }

// TooStaleError reports that the oplogs of otherwise eligible members begin after
// the last fetched entry. The entries in between are lost, unless a member that is
// down has them.
type TooStaleError struct {
	// LastFetched is the last fetched entry, Earliest the oldest entry that a member
	// has.
	LastFetched, Earliest oplog.OpTime
	// Refused has all members, including those that may still have the entries.
	Refused []Refusal
	// Untold are those of them that were asked in this search and did not tell how far their oplogs reach, even if they are not
	// denied any more.
	Untold []string
}

func (e *TooStaleError) Error() string {
	return fmt.Sprintf("the source's oplog does not reach back to %s, its oldest entry is %s%s", e.LastFetched, e.Earliest, list(e.Refused))
}

// list formats the refusals as a list to append to a sentence.
func list(refusals []Refusal) string {
	var b strings.Builder
	for i, r := range refusals {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(r.String())
	}
	return b.String()
}
