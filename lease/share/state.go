package share

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

// Status lists the partitions of a group, with the member that has each, since when and why. All times are the store's clock's.
// It is read in several statements: a change meanwhile may be in one and not in another.
type Status struct {
	Group string    `json:"group"`
	Now   time.Time `json:"now"`
	// Version is that of the assignment, 0 if there is none.
	Version int64 `json:"version"`
	// Coordinator is nil if there is none at this moment.
	Coordinator *Holder `json:"coordinator"`
	// Members and Partitions are sorted by name.
	Members    []MemberStatus    `json:"members"`
	Partitions []PartitionStatus `json:"partitions"`
}

// Holder is the process that has a lease.
type Holder struct {
	Member  string    `json:"member"`
	Process string    `json:"process"`
	Term    int64     `json:"term"`
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
}

// MemberStatus is a member of a group.
type MemberStatus struct {
	Member string `json:"member"`
	// Process is "" if no process has the name: the member is drained, and not there.
	Process string    `json:"process"`
	Joined  time.Time `json:"joined"`
	Beat    time.Time `json:"beat"`
	Limit   int       `json:"limit"`
	// Alive reports that the last beat is less than a TTL old.
	Alive   bool `json:"alive"`
	Drained bool `json:"drained"`
	Leaving bool `json:"leaving"`
	// Assigned is how many partitions are assigned to it, Running of how many it has the leases.
	Assigned int       `json:"assigned"`
	Running  int       `json:"running"`
	Refuses  []Refusal `json:"refuses,omitempty"`
}

// PartitionStatus is a partition of a group.
type PartitionStatus struct {
	Partition string `json:"partition"`
	// Member is the one that it is assigned to, "" for none; Since and Why belong to that.
	Member string    `json:"member"`
	Since  time.Time `json:"since"`
	Why    string    `json:"why"`
	// Holder has its lease, nil if no member has. It is not Member while the partition moves.
	Holder *Holder `json:"holder"`
}

// aliveFor is how old the last beat of a member may be: the default TTL of the leases.
const aliveFor = 10 * time.Second

// State returns the Status of the group.
func State(ctx context.Context, b Board, s locks.Store, group string) (*Status, error) {
	status, err := state(ctx, b, s, group)
	if err != nil {
		return nil, fmt.Errorf("read who has what in the group %s: %w", group, err)
	}
	return status, nil
}

func state(ctx context.Context, b Board, s locks.Store, group string) (*Status, error) {
	if err := checkGroup(group); err != nil {
		return nil, err
	}
	plan, err := b.Plan(ctx, group, "", 0)
	if err != nil {
		return nil, err
	}
	if plan == nil {
		plan = &Plan{}
	}
	members, now, err := b.Members(ctx, group)
	if err != nil {
		return nil, err
	}
	records, err := locks.Sight(ctx, s)
	if err != nil {
		return nil, err
	}
	status := &Status{Group: group, Now: now, Version: plan.Version}
	has := map[string]*Holder{} // by the name of the lease
	for i := range records {
		if r := &records[i]; r.IsLocked() {
			has[r.Name] = &Holder{Member: r.Who, Process: r.Process, Term: r.Term, Since: r.When, Expires: r.Expires}
		}
	}
	status.Coordinator = has[CoordinatorKey(group)]
	status.members(members)
	status.partitions(plan, has)
	return status, nil
}

func (s *Status) members(members []Member) {
	s.Members = make([]MemberStatus, 0, len(members))
	for i := range members {
		m := &members[i]
		age := s.Now.Sub(m.Beat) // far below 0 if the store's clock was set back since
		s.Members = append(s.Members, MemberStatus{
			Member: m.Name, Process: m.Process, Joined: m.Joined, Beat: m.Beat, Limit: m.Limit, Refuses: m.Refuses,
			Alive: m.Process != "" && age < aliveFor && age > -aliveFor, Drained: m.Drained, Leaving: m.Leaving,
		})
	}
}

// partitions adds those that are assigned, and those that are not and that a process has still.
func (s *Status) partitions(plan *Plan, has map[string]*Holder) {
	list := map[string]*PartitionStatus{}
	for _, a := range plan.Assignments {
		list[a.Partition] = &PartitionStatus{Partition: a.Partition, Member: a.Member, Since: a.Since, Why: a.Why}
		s.count(a.Member, func(m *MemberStatus) { m.Assigned++ })
	}
	for key, holder := range has {
		p, ok := strings.CutPrefix(key, Key(s.Group, ""))
		if !ok {
			continue
		}
		if list[p] == nil {
			list[p] = &PartitionStatus{Partition: p, Why: "removed"}
		}
		list[p].Holder = holder
		s.count(holder.Member, func(m *MemberStatus) { m.Running++ })
	}
	s.Partitions = make([]PartitionStatus, 0, len(list))
	for _, p := range list {
		s.Partitions = append(s.Partitions, *p)
	}
	slices.SortFunc(s.Partitions, func(a, b PartitionStatus) int { return cmp.Compare(a.Partition, b.Partition) })
}

func (s *Status) count(member string, add func(*MemberStatus)) {
	i, ok := slices.BinarySearchFunc(s.Members, member, func(m MemberStatus, name string) int { return cmp.Compare(m.Member, name) })
	if ok {
		add(&s.Members[i])
	}
}

// Drain makes a member have no partitions until Undrain, whether it is there or not: as the
// others have room, its own move to them. It stays, and may coordinate.
func Drain(ctx context.Context, b Board, group, member string) error {
	return drain(ctx, b, group, member, true)
}

// Undrain ends that.
func Undrain(ctx context.Context, b Board, group, member string) error {
	return drain(ctx, b, group, member, false)
}

func drain(ctx context.Context, b Board, group, member string, drained bool) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	if err := checkMember(member); err != nil {
		return err
	}
	if err := b.SetDrain(ctx, group, member, drained); err != nil {
		return fmt.Errorf("say whether %s drains, in the group %s: %w", member, group, err)
	}
	return nil
}
