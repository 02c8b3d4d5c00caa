package checkpoint

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrAhead reports that the target has a write of this Link whose reply was an
	// error or was lost: the lanes have to be read again.
	ErrAhead = errors.New("the target is ahead: it has a write whose answer was lost")
	// ErrNoLink reports that Acquire did not find the link.
	ErrNoLink = errors.New("there is no such link in the target's metadata")
	// ErrExists reports that the link that Create should make exists.
	ErrExists = errors.New("the link exists already")
	// ErrRemoved reports that the link that CreateIn should make was created, acquired and removed since its Vacancy was read.
	ErrRemoved = errors.New("the link was removed")
	// ErrNotLeftOut reports that a link does not leave out the collection of the part that CreatePart should make.
	ErrNotLeftOut = errors.New("the link does not leave out its collection, or for another copy of it")
	// ErrOtherSource reports that the source is not the link's replica set.
	ErrOtherSource = errors.New("the source is another replica set than the link was made for")
	// ErrSettings reports a link that was created with other settings.
	ErrSettings = errors.New("the link was created with other settings")
)

// SettingsError reports a link that was created with other settings. It wraps ErrSettings.
type SettingsError struct {
	Link string
	// Filters and Unique are the lists, and the policy for unique indexes, that the link was created with; nil if an
	// earlier release has not recorded them.
	Filters *Filters
	Unique  string
}

func (e *SettingsError) Error() string { return fmt.Sprintf("link %q: %v", e.Link, ErrSettings) }
func (e *SettingsError) Unwrap() error { return ErrSettings }

// OtherSettings returns the error of a link that was created with other settings.
func (s *State) OtherSettings(link string) error {
	_, unique, _ := strings.Cut(s.Fingerprint, ";unique=")
	return &SettingsError{Link: link, Filters: s.Filters, Unique: unique}
}

// Version is the newest format of the documents that this package writes. It also reads the older
// ones.
const Version = halfway

const (
	// halfway is the format of links whose deferred options are being converted.
	halfway = 5
	// ended is the format of links that were cut over.
	ended = 4
	// keeping is the format of links with collections that are kept back.
	keeping = 3
	// plain is the format of links without collections that are kept back.
	plain = 2
	// unrouted is the format of links without a recorded routing.
	unrouted = 1
)

// MaxWriters is the largest number of writers of a link.
const MaxWriters = 256

// VersionError reports that the documents of a link have an unknown format.
type VersionError struct {
	Link string
	// Found is the format's number.
	Found int64
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("link %q has format %d and this program knows up to %d: use the version of the program that wrote it",
		e.Link, e.Found, Version)
}

// Source identifies the replica set that a link reads.
type Source struct {
	// ReplicaSetID is settings.replicaSetId of its config, zero if it is unknown. A
	// set with another one is another set.
	ReplicaSetID bson.RawValue
	SetName      string
	// RBID is the rollback id of Host, the member that was read last, -1 if it is
	// unknown.
	RBID int64
	Host string
}

// State is the state of a link as its documents record it.
type State struct {
	// Term counts the acquisitions of the link's lease, from 1.
	Term    int64
	Source  Source
	Writers int
	// Routing is the version of the rule that assigns operations to lanes, 0 if it was
	// not recorded.
	Routing int
	// Fingerprint is that of the settings that must not change during the life of a
	// link (filters, renames, policies).
	Fingerprint string
	// Filters are the lists that the fingerprint is of, nil if an earlier release has not recorded
	// them.
	Filters *Filters
	// Applied, AppliedWall and FetchFrom are the checkpoint: everything up to
	// Applied is in the target, reading begins at FetchFrom.
	Applied     oplog.OpTime
	AppliedWall int64 // milliseconds since the epoch
	FetchFrom   oplog.OpTime
	// CopiedUntil is the entry up to which the oplog is applied in initial sync mode:
	// the copy was taken during writes. Null if the data were exact from the start.
	CopiedUntil oplog.OpTime
	// Copy is the copy that the link begins with, nil if the link makes none.
	// CopiedUntil is its Stop once that is known.
	Copy *Copy
	// LeftOut are the collections that the link leaves out while they are copied
	// again, sorted by name; see Gaps. The slice is replaced and never modified.
	LeftOut []LeftOut
	// KeptBack are the collections that wait for an index build.
	KeptBack []KeptBack
	// Over is the end of the link, nil if it continues.
	Over *Over
	// Converting is the cutover that converts its deferred options, nil if none does.
	Converting *Converting
	// Back is the end of another link that this one is the way back of, nil if it is none.
	Back *Back
	// Lanes are the positions of the writers' lanes. A lane that has not moved has the
	// position {Applied at the link's creation, AllOps}.
	Lanes []Position
	// LanesAnnounced has, for each lane, the position up to which operations outside of
	// transactions were announced and may or may not have been applied; the zero
	// Position if there are none.
	LanesAnnounced []Position
	// Barrier is the position of the barrier's lane: everything up to it, in any lane,
	// is in the target. Announced, if not the zero Position, is that of a command after it
	// that was announced and may or may not have been applied.
	Barrier   Position
	Announced Position
}

// validate checks the argument of Create.
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

// sameSet reports whether two ids can belong to the same replica set; an unknown id can
// belong to any.
func sameSet(a, b bson.RawValue) bool {
	return a.IsZero() || b.IsZero() || a.Equal(b)
}

// linkName excludes the slash, which separates the link's name from that of a lane.
var linkName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// ValidLink reports whether name is valid for a link: at most 64 letters, digits, dots,
// underscores and hyphens.
func ValidLink(name string) bool { return linkName.MatchString(name) }

// dbName excludes names that a server rejects.
var dbName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

func checkDB(name string) error {
	switch {
	case oplog.IsServerDB(name):
		return fmt.Errorf("metadata database %q: it belongs to the server", name)
	case !dbName.MatchString(name):
		return fmt.Errorf("metadata database %q: want letters, digits, _ and -, 63 at most", name)
	}
	return nil
}

// Furthest returns the last entry of which a lane has applied, or announced, an operation.
// It is not before the checkpoint.
func (s *State) Furthest() oplog.OpTime {
	ahead := s.Applied
	for _, l := range slices.Concat(s.Lanes, s.LanesAnnounced, []Position{s.Barrier, s.Announced}) {
		if l.OpTime.After(ahead) {
			ahead = l.OpTime
		}
	}
	return ahead
}
