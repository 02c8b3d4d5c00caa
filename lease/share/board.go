package share

import (
	"context"
	"time"
)

// MaxPartitions is how many partitions a group can have. The assignment is one document.
const MaxPartitions = 20_000

// The longest names, in bytes.
const (
	maxName      = 120
	maxPartition = 255
)

// Member is a member on the board. Its times are the store's clock's.
type Member struct {
	Name string
	// Process is the process that has the name, "" if none has: a member that is drained
	// and not there.
	Process string
	// Limit is how many partitions it takes, 0 for any number.
	Limit int
	// Leaving reports that it shuts down.
	Leaving bool
	// Refuses has the partitions whose work keeps failing on it.
	Refuses []Refusal
	// Drained is set by SetDrain alone.
	Drained bool
	// Joined is since when the process has the name, Beat when it was last alive.
	Joined, Beat time.Time
}

// Refusal is a partition whose work keeps failing on a member.
type Refusal struct {
	Partition string `json:"partition"`
	// Failures is how often it has failed in a row, Why the last error.
	Failures int    `json:"failures"`
	Why      string `json:"why"`
}

// Assignment says which member a partition is assigned to.
type Assignment struct {
	Partition string
	// Member is "" while no member can have it.
	Member string
	// Since is when it was assigned to the member, by the store's clock. Why says for what
	// reason.
	Since time.Time
	Why   string
}

// Plan is the assignment of all partitions of a group.
type Plan struct {
	// Version grows with each change.
	Version int64
	// Term is the fencing token of the coordinator that wrote it, Coordinator its member.
	Term        int64
	Coordinator string
	// Deputies are the members that try to become the coordinator often.
	Deputies []string
	// Assignments are sorted by partition.
	Assignments []Assignment
}

// Board has the members of groups and their assignments. Each method is one statement, or
// behaves like one, but for reads of several documents. Its methods are safe for concurrent
// use, and retry nothing.
//
// After an error a write may have taken effect, or may still do so. A member that was written
// may be lost by an election of the store; a plan that was read or written may not.
type Board interface {
	// Beat records that a member is alive: all of it but Drained and the times, which the store's
	// clock gives. If another process has the name, and beat less than taken ago, nothing
	// changes. It returns the member as the board has it after that.
	Beat(ctx context.Context, group string, m Member, taken time.Duration) (Member, error)
	// Leave removes a member that has that process. Whether it is drained stays.
	Leave(ctx context.Context, group, member, process string) error
	// Members returns the members, sorted by name, and the time by the store's clock, which
	// is not from before the call.
	Members(ctx context.Context, group string) ([]Member, time.Time, error)
	// SetDrain says whether a member is drained, also of one that is not there.
	SetDrain(ctx context.Context, group, member string, drained bool) error

	// Plan returns the plan if its version is greater than seen, otherwise nil. With a member
	// it has the assignments to that member alone.
	Plan(ctx context.Context, group, member string, seen int64) (*Plan, error)
	// Propose replaces the plan if its version is the given one, 0 if there is none, and
	// its term is not greater than that of the new one. It reports whether it did.
	Propose(ctx context.Context, group string, version int64, p *Plan) (bool, error)
}
