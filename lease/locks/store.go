package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// State is the state of a record, with the numbers that config.locks has.
type State int32

// The states. A record in Preparing is locked; this package does not write it.
const (
	Unlocked State = iota
	Preparing
	Locked
)

// Record is one lock in a store. All times are the store's clock's.
type Record struct {
	Name  string
	State State
	// Process and ID are those of the Claim that has the lock, or had it last. An ID
	// belongs to one acquisition.
	Process string
	ID      bson.ObjectID
	// Term counts the acquisitions, from 1: the fencing token. It only grows, also when the
	// lock is released.
	Term int64
	// Renewals counts the renewals in the term.
	Renewals int64
	// TTL is how long the lock lasts after it was acquired or renewed, 0 for one that has no
	// end. Expires is when it ends, zero without a TTL.
	TTL     time.Duration
	Expires time.Time
	// When is since when it is locked, Modified when it was last changed.
	When, Modified time.Time
	// Who is the part of the process that locked it, Why the reason.
	Who, Why string
}

// IsLocked reports whether the lock is taken, as of the time when the record was read: a
// lock with a TTL may have ended since it was last changed.
func (r Record) IsLocked() bool { return r.State != Unlocked }

// String describes the holder of the lock, since when and why.
func (r Record) String() string {
	if !r.IsLocked() {
		return r.Name + " is not locked"
	}
	text := fmt.Sprintf("%s is locked by %s since %s UTC", r.Name, r.Process, r.When.UTC().Format(time.DateTime))
	if r.Who != "" {
		text += " for " + r.Who
	}
	if r.Why != "" {
		text += ": " + r.Why
	}
	return text
}

// Claim describes the process that wants a lock, and the kind of lock.
type Claim struct {
	Name    string
	Process string
	// ID is new for each acquisition: a store recognizes by it that a claim came before.
	ID bson.ObjectID
	// TTL is how long the lock lasts unless it is renewed; 0: until it is released. Stores
	// count in milliseconds.
	TTL time.Duration
	// Overtake, if not zero, is the ID of an acquisition that the claim may replace as long as it has this number of
	// renewals: its process may be alive after one more.
	Overtake bson.ObjectID
	Renewals int64
	Who, Why string
}

// Moment is the time by the store's clock.
type Moment struct {
	Time time.Time
	// Election changes whenever another server may have become the one that has the clock.
	Election string
}

var (
	// ErrUnavailable is wrapped by the errors of a store that may pass: it cannot be reached,
	// has no primary, the reply was lost, or ctx was done before the reply came. Whether the
	// call took effect is unknown.
	ErrUnavailable = errors.New("the store of the locks is not available")
	// ErrLost reports that a process does not have a lock any more: it was released or
	// overtaken, or it ended.
	ErrLost = errors.New("the lock is lost")
)

// mayPass reports whether a call may succeed when it is made again. A call that took as long as
// it was given may have been executed.
func mayPass(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrExpired) || errors.Is(err, context.DeadlineExceeded)
}

// Sweeper is a Store that can remove the pings of processes that have ended without
// [Manager.Close]. A Manager asks for that once a day.
type Sweeper interface {
	// SweepPings removes the pings that are older than that, by the store's clock, of
	// processes that no locked record names. Each is removed only if it is still as old then.
	SweepPings(ctx context.Context, older time.Duration) error
}

// Store keeps records. Each method is one statement, or behaves like one. Its methods are
// safe for concurrent use, and retry nothing.
//
// A write that has returned without an error is durable: no election, restart or crash of
// the store takes it back. After an error it may have taken effect, or may still do so
// while the store executes late commands: the callers of this package then use the same
// claim again, or release its ID.
//
// The times in the conditions below are those of the store's clock, read in the same
// statement that changes the record. No method takes a time of the client.
type Store interface {
	// Acquire locks a record if it is free: absent, unlocked, ended, or locked with the ID
	// in Claim.Overtake and the renewals in Claim.Renewals. That raises its term by one, and sets everything else from the
	// claim and the clock. If the record is locked with the claim's own ID, because a reply
	// was lost, that renews it, as Renew does. Otherwise nothing changes. Acquire returns the record after
	// that: the claim has the lock if it is locked with the claim's ID.
	Acquire(ctx context.Context, c Claim) (Record, error)
	// Renew extends a lock with a TTL by its TTL from now, if it has that ID and has not
	// ended. Otherwise it returns ErrLost. It never makes a lock end earlier, also when a late
	// command is executed by the time when it was sent. Of a lock without an end it confirms that it
	// is locked with that ID.
	Renew(ctx context.Context, name string, id bson.ObjectID) (Record, error)
	// Release unlocks a record that has that ID. Its term stays. It returns nil without an
	// effect if the record has another one, or is absent or unlocked.
	Release(ctx context.Context, name string, id bson.ObjectID) error
	// List returns the records of a process, or all if process is empty, sorted by name. A
	// lock with a TTL that has ended is returned as Unlocked. It may lag after an election of
	// the store: what it does not show may be locked.
	List(ctx context.Context, process string) ([]Record, error)
	// Clock returns the time and the election. It never returns a time from before the call.
	Clock(ctx context.Context) (Moment, error)

	// Ping records that a process is alive: the present time.
	Ping(ctx context.Context, process string) error
	// Pinged returns the time that Ping recorded last, zero if there is none.
	Pinged(ctx context.Context, process string) (time.Time, error)
	// RemovePing removes it.
	RemovePing(ctx context.Context, process string) error
}
