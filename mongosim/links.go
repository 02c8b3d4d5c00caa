package mongosim

import (
	"fmt"

	"github.com/oplogrep/replicator/mongosim/fault"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

// Client stands for all clients of the set where a method takes two ends of a link:
// Cut(Client, 0) disconnects the clients of member 0.
const Client = -1

// clientName is what links call the clients.
const clientName = netfault.Client

// Cut breaks the link between two members, or between a member and the clients:
// connections are closed and new ones are refused until the link is healed. It panics
// if there is no such link.
func (s *Set) Cut(a, b int) { s.must(s.Fault(a, b, fault.Fault{Kind: fault.Cut})) }

// Isolate cuts a member off from all other members. Clients still reach it; also
// Cut(Client, id) to change that. Rejoin reverts it.
func (s *Set) Isolate(id int) {
	for _, m := range s.Members() {
		if m.id != id {
			s.Cut(id, m.id)
		}
	}
}

// Rejoin ends the faults of all links between a member and the other members.
func (s *Set) Rejoin(id int) {
	for _, m := range s.Members() {
		if m.id != id {
			s.Heal(id, m.id)
		}
	}
}

// Fault sets the faults of the link between a and b, replacing its present ones.
// Directions are as seen from a.
func (s *Set) Fault(a, b int, faults ...fault.Fault) error {
	from, to, err := s.link(a, b)
	if err != nil {
		return err
	}
	if err := s.net.Set(from, to, faults...); err != nil {
		return fmt.Errorf("mongosim: link %s to %s: %w", from, to, err)
	}
	return nil
}

// Heal ends the faults of the link between a and b. It panics if there is no such
// link.
func (s *Set) Heal(a, b int) {
	from, to, err := s.link(a, b)
	s.must(err)
	s.net.Heal(from, to)
}

// HealAll ends the faults of all links, and thaws all members.
func (s *Set) HealAll() { s.net.HealAll() }

// link names two different ends.
func (s *Set) link(a, b int) (from, to string, err error) {
	if a == b {
		return "", "", fmt.Errorf("mongosim: link %d to %d: it has one end only", a, b)
	}
	names := [2]string{clientName, clientName}
	for i, id := range [2]int{a, b} {
		switch all := s.Members(); {
		case id == Client:
		case id < 0 || id >= len(all):
			return "", "", fmt.Errorf("mongosim: link %d to %d: no member %d", a, b, id)
		default:
			names[i] = all[id].name
		}
	}
	return names[0], names[1], nil
}

// must is for faults that this package makes, on ends that the caller knows.
func (s *Set) must(err error) {
	if err != nil {
		panic(err)
	}
}
