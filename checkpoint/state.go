package checkpoint

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrAhead is a target that has a write of this Link whose answer was an
	// error, or got lost: what is in the target has to be read anew.
	ErrAhead = errors.New("the target is ahead: it has a write whose answer was lost")
	// ErrNoLink is a link that Acquire does not find.
	ErrNoLink = errors.New("there is no such link in the target's metadata")
	// ErrExists is a link that Create finds.
	ErrExists = errors.New("the link exists already")
	// ErrOtherSource is a source that is another replica set than the link's.
	ErrOtherSource = errors.New("the source is another replica set than the link was made for")
)

// Version is the format of the documents that this package writes. It reads
// unrouted ones too.
const Version = 2

// unrouted is the format of links of which no routing was recorded.
const unrouted = 1

// MaxWriters is the largest number of writers of a link.
const MaxWriters = 256

// VersionError is a link whose documents have another format.
type VersionError struct {
	Link string
	// Found is the format's number.
	Found int64
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("link %q has format %d and this program knows up to %d: use the version of the program that wrote it",
		e.Link, e.Found, Version)
}

// Source says which replica set a link follows.
type Source struct {
	// ReplicaSetID is settings.replicaSetId of its config, nil where it could
	// not be learned. A set with another one is another set.
	ReplicaSetID bson.RawValue
	SetName      string
	// RBID is the rollback id of Host, the member that was read last, -1 where
	// it is not known.
	RBID int64
	Host string
}

// State is what is known of a link.
type State struct {
	// Term counts the starts of the link, from 1.
	Term    int64
	Source  Source
	Writers int
	// Routing is the version of the rules by which operations are given to lanes, 0
	// where it was not recorded.
	Routing int
	// Fingerprint is of the settings that must not change while a link lives
	// (filters, renames, policies).
	Fingerprint string
	// Applied, AppliedWall and FetchFrom are the checkpoint: everything up to
	// Applied is in the target, reading begins at FetchFrom.
	Applied     oplog.OpTime
	AppliedWall int64 // milliseconds since the epoch
	FetchFrom   oplog.OpTime
	// CopiedUntil: up to it the log meets a copy that was taken while writes
	// went on. Null where the data were exact from the start.
	CopiedUntil oplog.OpTime
	// Copy is the copy that the link begins with, nil where somebody else made
	// it or none is wanted. CopiedUntil is its Stop once that is known.
	Copy *Copy
	// LeftOut are the collections that the link leaves out while they are copied
	// again, by name; see Gaps. It is never changed, but replaced.
	LeftOut []LeftOut
	// Lanes are the positions of the writers' lanes; a lane that has not moved
	// yet has the position {Applied of the link's creation, AllOps}.
	Lanes []Position
	// LanesBegun are, for each lane, how far something outside of transactions
	// was begun and may or may not have been done; the zero Position stands for
	// nothing.
	LanesBegun []Position
	// Barrier is the position of the lane for what has to be alone: everything
	// before it, in any lane, is in the target. Begun, if not the zero Position,
	// is a command that was begun after it and may or may not have been carried
	// out.
	Barrier Position
	Begun   Position
}

// validate checks what Create is given.
func (s *State) validate() error {
	var faults []error
	if s.Writers < 1 || s.Writers > MaxWriters {
		faults = append(faults, fmt.Errorf("%d writers: not between 1 and %d", s.Writers, MaxWriters))
	}
	if s.Applied.IsNull() {
		faults = append(faults, errors.New("no optime to begin after"))
	}
	if s.FetchFrom.IsNull() {
		faults = append(faults, errors.New("no optime to read from"))
	}
	if s.FetchFrom.After(s.Applied) {
		faults = append(faults, fmt.Errorf("reading from %s would miss what follows %s", s.FetchFrom, s.Applied))
	}
	if len(s.LeftOut) > 0 {
		faults = append(faults, fmt.Errorf("a new link leaves out %s", s.LeftOut[0].NS))
	}
	if c := s.Copy; c != nil {
		faults = append(faults, c.validateNew())
		if c.Begin != s.Applied || c.FetchFrom != s.FetchFrom {
			faults = append(faults, fmt.Errorf("a copy after %s from %s, for a link after %s from %s",
				c.Begin, c.FetchFrom, s.Applied, s.FetchFrom))
		}
		if !s.CopiedUntil.IsNull() {
			faults = append(faults, fmt.Errorf("a copy that ends at %s has not been begun", s.CopiedUntil))
		}
	}
	return errors.Join(faults...)
}

// sameSet tells whether two ids of a replica set may be of one set; an unknown
// one may be of any.
func sameSet(a, b bson.RawValue) bool {
	return a.IsZero() || b.IsZero() || a.Equal(b)
}

// linkName excludes what separates a link from its lanes.
var linkName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidLink tells whether a link can have this name: letters, digits, dot, _ and -,
// 64 at most.
func ValidLink(name string) bool { return linkName.MatchString(name) }

// dbName excludes what a server refuses, and what belongs to it.
var dbName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

func checkDB(name string) error {
	switch {
	case name == "admin" || name == "local" || name == "config":
		return fmt.Errorf("metadata database %q: it belongs to the server", name)
	case !dbName.MatchString(name):
		return fmt.Errorf("metadata database %q: want letters, digits, _ and -, 63 at most", name)
	}
	return nil
}

// Furthest returns the entry up to which some lane has, or has begun, its part: at or
// after the checkpoint.
func (s *State) Furthest() oplog.OpTime {
	ahead := s.Applied
	for _, l := range slices.Concat(s.Lanes, s.LanesBegun, []Position{s.Barrier, s.Begun}) {
		if l.OpTime.After(ahead) {
			ahead = l.OpTime
		}
	}
	return ahead
}
