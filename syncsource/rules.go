package syncsource

import (
	"errors"
	"fmt"
	"time"
)

// Mode is the read preference. Empty is ModeNearest, or ModePrimary if the set's
// configuration does not allow chaining.
type Mode string

// The modes. An explicit mode applies even if the set does not allow chaining.
const (
	// ModePrimary reads from the primary only.
	ModePrimary Mode = "primary"
	// ModePrimaryPreferred reads from the primary if it is eligible, otherwise from
	// any member.
	ModePrimaryPreferred Mode = "primaryPreferred"
	// ModeSecondary never reads from a primary.
	ModeSecondary Mode = "secondary"
	// ModeSecondaryPreferred reads from a primary only if no secondary is eligible.
	ModeSecondaryPreferred Mode = "secondaryPreferred"
	// ModeNearest reads from the member that answers fastest.
	ModeNearest Mode = "nearest"
)

// Rules are the requirements on a source. The zero value has the server's defaults,
// for a reader that has no vote, builds indexes and is not delayed.
type Rules struct {
	// Mode is the kind of member.
	Mode Mode
	// TagSets are tried in order: the first that any candidate matches is used. They
	// do not apply to a primary that is chosen for being one. Empty matches all.
	TagSets []map[string]string
	// MaxLag is how far a source may lag the primary, in whole seconds, if there is another
	// candidate, and its commit point that of another member (10 s at least). 0 means 30 s.
	MaxLag time.Duration
	// AcceptEqual accepts a member that has all fetched entries but none newer, if no
	// member is ahead. A secondary does not do that, since members must not sync from
	// each other in a circle; no member syncs from a mirror. Without it, a reader of
	// an idle set finds no source before the next no-op entry, which a primary writes
	// every 10 s.
	AcceptEqual bool
	// Pinned, if set, is the only source. Of the rules, none applies to it; a denial
	// does.
	Pinned string
	// Delay is the reader's own delay.
	Delay time.Duration
}

const (
	defaultMaxLag = 30 * time.Second
	// pingThreshold is the difference in ping above which the source is left for a
	// nearer member, and up to which the primary is still preferred.
	pingThreshold = 5 * time.Millisecond
	// maxChangesPerHour is the number of changes within an hour after which the ping
	// causes no more.
	maxChangesPerHour = 3
)

func (r *Rules) setDefaults() {
	if r.MaxLag == 0 {
		r.MaxLag = defaultMaxLag
	}
}

func (r *Rules) validate() error {
	var faults []error
	switch r.Mode {
	case "", ModePrimary, ModePrimaryPreferred, ModeSecondary, ModeSecondaryPreferred, ModeNearest:
	default:
		faults = append(faults, fmt.Errorf("syncsource: read preference %q is not one of primary, primaryPreferred, secondary, secondaryPreferred and nearest", r.Mode))
	}
	if r.Mode == ModePrimary && len(r.TagSets) > 0 {
		faults = append(faults, errors.New("syncsource: read preference primary takes no tags"))
	}
	if r.MaxLag < 0 || r.MaxLag%time.Second != 0 {
		faults = append(faults, fmt.Errorf("syncsource: maximum lag %s is not a number of seconds above 0", r.MaxLag))
	}
	if r.Delay < 0 {
		faults = append(faults, fmt.Errorf("syncsource: delay %s is below 0", r.Delay))
	}
	return errors.Join(faults...)
}

// mode returns the effective mode for a set.
func (r *Rules) mode(v *View) Mode {
	switch {
	case r.Mode != "":
		return r.Mode
	case v.NoChaining:
		return ModePrimary
	}
	return ModeNearest
}
