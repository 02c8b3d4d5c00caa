package oplog

import "strconv"

// MemberState is the state of a replica set member, with the protocol's numbers.
type MemberState int

// The states of a member.
const (
	MemberStartup    MemberState = 0
	MemberPrimary    MemberState = 1
	MemberSecondary  MemberState = 2
	MemberRecovering MemberState = 3
	MemberStartup2   MemberState = 5
	MemberUnknown    MemberState = 6
	MemberArbiter    MemberState = 7
	MemberDown       MemberState = 8
	MemberRollback   MemberState = 9
	MemberRemoved    MemberState = 10
)

// Readable reports whether a member in this state answers reads.
func (s MemberState) Readable() bool { return s == MemberPrimary || s == MemberSecondary }

// String returns the state's name, as in rs.status().
func (s MemberState) String() string {
	switch s {
	case MemberStartup:
		return "STARTUP"
	case MemberPrimary:
		return "PRIMARY"
	case MemberSecondary:
		return "SECONDARY"
	case MemberRecovering:
		return "RECOVERING"
	case MemberStartup2:
		return "STARTUP2"
	case MemberUnknown:
		return "UNKNOWN"
	case MemberArbiter:
		return "ARBITER"
	case MemberDown:
		return "DOWN"
	case MemberRollback:
		return "ROLLBACK"
	case MemberRemoved:
		return "REMOVED"
	}
	return "MemberState(" + strconv.Itoa(int(s)) + ")"
}
