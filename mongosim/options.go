package mongosim

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/oplog"
)

// Options configure a set. The zero value is a set of one member that behaves like a
// 5.0 server, without access control.
type Options struct {
	// Members is the number of members, 1 to 50, default 1. At most 7 may vote. It is
	// ignored if there are MemberOptions.
	Members int
	// MemberOptions configure each member; empty means Members ordinary ones.
	MemberOptions []MemberOptions
	// SetName is the set's name, default "rs0".
	SetName string
	// Address is the IP address that the members listen on, default 127.0.0.1. One
	// that stands for all addresses, such as 0.0.0.0, needs a Hostname.
	Address string
	// Hostname is the members' host in the configuration, which clients connect to;
	// default Address.
	Hostname string
	// Port is the port of the first member; each member after it, those of AddMember
	// included, has the next one. 0 means ports chosen by the system.
	Port int
	// Dialect is the server version whose replies and oplog the members imitate: "4.4",
	// "5.0" (default), "6.0", "7.0" or "8.0".
	Dialect string
	// NoHello makes members of dialect 4.4 be 4.4.1, which knows hello as isMaster only.
	NoHello bool
	// FCV is the feature compatibility version, default that of the dialect. The command
	// setFeatureCompatibilityVersion changes the version reported, and writes the oplog entry;
	// the format of the oplog remains that of this option.
	FCV string
	// Seed is the seed of everything random: election timeouts, UUIDs, jitter of links.
	// See Determinism in the package documentation.
	Seed int64
	// OplogBytes is the size of each member's oplog, default 256 MiB.
	OplogBytes int64
	// HeartbeatInterval and ElectionTimeout are 100 ms and 1 s by default, so that tests
	// are fast; the defaults of a server are 2 s and 10 s.
	HeartbeatInterval, ElectionTimeout time.Duration
	// JournalDelay is how long after it was applied an entry becomes durable, default 0.
	JournalDelay time.Duration
	// SnapshotHistory is for how long data can be read as of an earlier cluster time, in whole
	// seconds, default 5 s: minSnapshotHistoryWindowInSeconds, which is 300 on a server. Members
	// keep all versions of documents as long in memory.
	SnapshotHistory time.Duration
	// DefaultReadConcern is the level of reads that name none: "local" (default) or "majority", as an
	// administrator can choose with setDefaultRWConcern.
	DefaultReadConcern string
	// TransactionLifetime is the age at which an open transaction is aborted, default
	// 60 s.
	TransactionLifetime time.Duration
	// TTLInterval is how often a primary deletes expired documents, default a minute.
	// Negative means never.
	TTLInterval time.Duration
	// WriteConcernModes are settings.getLastErrorModes: mode → tag → number of different
	// values of the tag that have to acknowledge.
	WriteConcernModes map[string]map[string]int
	// Recording makes the set, which must have one member, play a recorded oplog.
	Recording *Recording
	// Users, if any, enable access control.
	Users []User
	// Keyfile, if set, is the content of the keyfile, with which the user __system logs
	// in. It enables access control.
	Keyfile string
	// NoInitiate leaves the members without a configuration, for replSetInitiate.
	NoInitiate bool
	// NewUUID, if set, returns the UUIDs of new collections and index builds, in the order
	// of their oplog entries. All members call it. Default: UUIDs from Seed.
	NewUUID func() oplog.UUID
	// Moods are rare answers of a real server. The zero value is none with Start, and all
	// with StartTest.
	Moods Moods
	// Log receives the members' log; nil discards it.
	Log *slog.Logger
}

// MemberOptions configure one member. The zero value is an ordinary one.
type MemberOptions struct {
	// NonVoting is votes: 0. It needs NoPriority.
	NonVoting bool
	// Priority is the member's priority, default 1. NoPriority is priority: 0.
	Priority   float64
	NoPriority bool
	// Hidden is hidden: true. It needs NoPriority.
	Hidden bool
	// Arbiter is arbiterOnly: true.
	Arbiter bool
	// NoIndexes is buildIndexes: false. It needs NoPriority.
	NoIndexes bool
	// Delay is secondaryDelaySecs, in whole seconds. It needs NoPriority.
	Delay time.Duration
	// Tags are the member's tags.
	Tags map[string]string
	// Name is the member's host:port in the set's configuration, if it differs from the
	// address at which the member listens. Clients cannot connect to it, as if the set
	// were in a container or at the other end of a tunnel; the other members can.
	Name string
}

// User is a user with roles, such as {"readWrite", "app"} or {"root", "admin"}.
type User struct {
	Name, Password string
	// DB is the user's authentication database, default "admin".
	DB    string
	Roles []Role
}

// Role is a built-in role on a database. The command createRole creates others.
type Role struct{ Name, DB string }

// dialects maps the values of Options.Dialect to the version that a member reports.
var dialects = map[string]string{
	"4.4": "4.4.29", "5.0": "5.0.7", "6.0": "6.0.19", "7.0": "7.0.15", "8.0": "8.0.4",
}

// Dialects returns the values of Options.Dialect, sorted.
func Dialects() []string { return slices.Sorted(maps.Keys(dialects)) }

func (o *Options) setDefaults() {
	if o.SetName == "" {
		o.SetName = "rs0"
	}
	if o.Dialect == "" {
		o.Dialect = "5.0"
	}
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.FCV == "" {
		o.FCV = o.Dialect
	}
	if len(o.MemberOptions) == 0 {
		o.MemberOptions = make([]MemberOptions, max(o.Members, 1))
	}
	if o.Members >= 0 {
		o.Members = len(o.MemberOptions)
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = 100 * time.Millisecond
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = time.Second
	}
	if o.TransactionLifetime == 0 {
		o.TransactionLifetime = time.Minute
	}
	if o.TTLInterval == 0 {
		o.TTLInterval = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

var setName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// Validate returns all faults of the options; Start returns them too.
func (o Options) Validate() error {
	o.setDefaults()
	return o.validate()
}

func (o *Options) validate() error {
	var faults []error
	if _, ok := dialects[o.Dialect]; !ok {
		faults = append(faults, fmt.Errorf("mongosim: dialect %q is none of %v", o.Dialect, Dialects()))
	}
	if o.NoHello && o.Dialect != "4.4" {
		faults = append(faults, fmt.Errorf("mongosim: dialect %s has hello", o.Dialect))
	}
	if o.Members > 50 {
		faults = append(faults, fmt.Errorf("mongosim: %d members; a set has at most 50", o.Members))
	}
	for name, d := range map[string]time.Duration{
		"heartbeat interval": o.HeartbeatInterval, "election timeout": o.ElectionTimeout,
	} {
		if d < time.Millisecond {
			faults = append(faults, fmt.Errorf("mongosim: %s %s is less than a millisecond", name, d))
		}
	}
	if o.ElectionTimeout < o.HeartbeatInterval {
		faults = append(faults, fmt.Errorf("mongosim: election timeout %s is shorter than the heartbeat interval %s", o.ElectionTimeout, o.HeartbeatInterval))
	}
	if o.DefaultReadConcern != "" && o.DefaultReadConcern != "local" && o.DefaultReadConcern != "majority" {
		faults = append(faults, fmt.Errorf("mongosim: default read concern %q is neither local nor majority", o.DefaultReadConcern))
	}
	if o.TransactionLifetime < 0 {
		faults = append(faults, fmt.Errorf("mongosim: transaction lifetime %s is below 0", o.TransactionLifetime))
	}
	if !setName.MatchString(o.SetName) {
		faults = append(faults, fmt.Errorf("mongosim: set name %q is not made of letters, digits, ., - and _", o.SetName))
	}
	for _, u := range o.Users {
		if u.Name == "" || u.Password == "" {
			faults = append(faults, fmt.Errorf("mongosim: user %q needs a name and a password", u.Name))
		}
	}
	if n := len(o.Keyfile); n > 0 && (n < 6 || n > 1024) {
		faults = append(faults, fmt.Errorf("mongosim: keyfile of %d characters; a server takes 6 to 1024", n))
	}
	if o.JournalDelay < 0 {
		faults = append(faults, fmt.Errorf("mongosim: journal delay %s is below 0", o.JournalDelay))
	}
	if o.SnapshotHistory < 0 || o.SnapshotHistory%time.Second != 0 || o.SnapshotHistory > time.Hour {
		faults = append(faults, fmt.Errorf("mongosim: snapshot history %s is not a number of whole seconds up to an hour", o.SnapshotHistory))
	}
	if o.OplogBytes < 0 {
		faults = append(faults, fmt.Errorf("mongosim: oplog of %d bytes is below 0", o.OplogBytes))
	}
	if o.Recording != nil {
		faults = append(faults, o.Recording.validate(o.Members))
	}
	faults = append(faults, o.validatePorts())
	if o.Members < 0 {
		faults = append(faults, fmt.Errorf("mongosim: %d members is below 0", o.Members))
	}
	for i := range o.MemberOptions {
		if err := o.MemberOptions[i].validate(); err != nil {
			faults = append(faults, fmt.Errorf("mongosim: member %d: %w", i, err))
		}
	}
	return errors.Join(faults...)
}

func (m *MemberOptions) validate() error {
	var faults []error
	if (m.Hidden || m.NonVoting || m.NoIndexes || m.Delay > 0) && !m.NoPriority {
		faults = append(faults, errors.New("it is hidden, delayed, or without a vote or indexes, and so needs NoPriority"))
	}
	if m.NoPriority && m.Priority != 0 || m.Priority < 0 || m.Priority > 1000 {
		faults = append(faults, fmt.Errorf("priority %g is not 0 to 1000, or NoPriority is set too", m.Priority))
	}
	if m.Arbiter && (m.NonVoting || m.Hidden || m.Delay > 0 || m.NoIndexes || len(m.Tags) > 0) {
		faults = append(faults, errors.New("an arbiter has a vote, and no data to hide, delay, index or tag"))
	}
	if m.Delay < 0 || m.Delay%time.Second != 0 {
		faults = append(faults, fmt.Errorf("delay %s is not a number of whole seconds", m.Delay))
	}
	return errors.Join(faults...)
}

// major is the dialect's major version.
func (o *Options) major() int {
	major, _, _ := strings.Cut(o.Dialect, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		panic(fmt.Sprintf("mongosim: the dialect %q has no major version", o.Dialect))
	}
	return n
}

func (o *Options) dialect() opwrite.Dialect {
	version := dialects[o.Dialect]
	if o.NoHello {
		version = "4.4.1"
	}
	return opwrite.Dialect{Version: version, FCV: o.FCV}
}
