package syncsource

import (
	"errors"
	"fmt"
	"time"
)

// Mode says which kind of member is wanted. Empty is ModeNearest, or ModePrimary
// where the set's configuration does not allow chaining.
type Mode string

// The modes. One that is named holds even where the set does not allow chaining.
const (
	// ModePrimary reads from the primary only.
	ModePrimary Mode = "primary"
	// ModePrimaryPreferred reads from the primary if it will do, else from anybody.
	ModePrimaryPreferred Mode = "primaryPreferred"
	// ModeSecondary never reads from a primary.
	ModeSecondary Mode = "secondary"
	// ModeSecondaryPreferred reads from a primary only if nobody else will do.
	ModeSecondaryPreferred Mode = "secondaryPreferred"
	// ModeNearest reads from the member that answers fastest.
	ModeNearest Mode = "nearest"
)

// Rules say what is asked of a source. The zero value has the server's defaults,
// for a reader that has no vote, builds indexes and is not delayed.
type Rules struct {
	// Mode is the kind of member.
	Mode Mode
	// TagSets are tried in order: the first that any candidate matches counts. They
	// do not apply to a primary that is chosen for being one. Empty matches all.
	TagSets []map[string]string
	// MaxLag is how far behind the primary a source may be, in whole seconds, if
	// there is another one. 0 means 30 s.
	MaxLag time.Duration
	// PingThreshold is how much nearer another member has to be for a change to it,
	// and how much farther the primary may be and still be preferred, in whole
	// milliseconds. 0 means 5 ms; negative means that there are no changes because
	// of the ping.
	PingThreshold time.Duration
	// MaxChangesPerHour is after how many changes within an hour there are none
	// because of the ping any more. 0 means 3; negative means none at all.
	MaxChangesPerHour int
	// AcceptEqual takes a member that is not ahead of what was fetched but has all
	// of it, if nobody is ahead. A secondary does not do that, for members must not
	// read from each other in a circle; from a mirror nobody reads. Without it, a
	// reader of a set in which nothing is written finds no source before the next
	// no-op entry, which a primary writes every 10 s.
	AcceptEqual bool
	// Pinned, if set, is the only source. It is not held against any rule.
	Pinned string
	// Delay is by how much the reader is delayed.
	Delay time.Duration
}

const (
	defaultMaxLag            = 30 * time.Second
	defaultPingThreshold     = 5 * time.Millisecond
	defaultMaxChangesPerHour = 3
)

func (r *Rules) setDefaults() {
	if r.MaxLag == 0 {
		r.MaxLag = defaultMaxLag
	}
	if r.PingThreshold == 0 {
		r.PingThreshold = defaultPingThreshold
	}
	if r.MaxChangesPerHour == 0 {
		r.MaxChangesPerHour = defaultMaxChangesPerHour
	}
}

func (r *Rules) validate() error {
	var faults []error
	switch r.Mode {
	case "", ModePrimary, ModePrimaryPreferred, ModeSecondary, ModeSecondaryPreferred, ModeNearest:
	default:
		faults = append(faults, fmt.Errorf("syncsource: read preference %q is none of primary, primaryPreferred, secondary, secondaryPreferred and nearest", r.Mode))
	}
	if r.Mode == ModePrimary && len(r.TagSets) > 0 {
		faults = append(faults, errors.New("syncsource: read preference primary takes no tags"))
	}
	if r.MaxLag < 0 || r.MaxLag%time.Second != 0 {
		faults = append(faults, fmt.Errorf("syncsource: maximum lag %s is not a number of seconds above 0", r.MaxLag))
	}
	if r.PingThreshold%time.Millisecond != 0 {
		faults = append(faults, fmt.Errorf("syncsource: ping threshold %s is not a number of milliseconds", r.PingThreshold))
	}
	if r.Delay < 0 {
		faults = append(faults, fmt.Errorf("syncsource: delay %s is below 0", r.Delay))
	}
	return errors.Join(faults...)
}

// mode is the mode that holds for a set.
func (r *Rules) mode(v *View) Mode {
	switch {
	case r.Mode != "":
		return r.Mode
	case v.NoChaining:
		return ModePrimary
	}
	return ModeNearest
}
