package repl

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// standstill is a member that does not run by itself: a test makes each turn of its
// election loop.
type standstill struct {
	*testNode
	timeout time.Duration
	due     time.Time // of the timer of the last turn
}

func newStandstill(t *testing.T) *standstill {
	tn := quiet(t)
	tn.Node.mu.Lock()
	defer tn.Node.mu.Unlock()
	tn.follow = oplog.MemberSecondary
	for i, m := range tn.members {
		if i != tn.self {
			m.up = true
		}
	}
	return &standstill{testNode: tn, timeout: tn.electionTimeout()}
}

// turn is a turn of the election loop: it reports whether the member stands for
// election.
func (s *standstill) turn() bool {
	s.Node.mu.Lock()
	defer s.Node.mu.Unlock()
	now := time.Now()
	s.excuse(s.due, now)
	wait, why := s.dueElection(now)
	s.due = now.Add(s.pulse(wait))
	return why != ""
}

// run makes the turns that are due within d, and reports whether the member stood for
// election, or stepped down, and after which time.
func (s *standstill) run(d time.Duration) (time.Duration, bool) {
	began := time.Now()
	leads := s.role == leader
	for end := began.Add(d); ; time.Sleep(time.Until(s.due)) {
		if s.turn() || leads && s.role != leader {
			return time.Since(began), true
		}
		if s.due.After(end) {
			time.Sleep(time.Until(end))
			return d, false
		}
	}
}

// TestStandstillIsNoSilence: time in which the whole process stood still does
// not count as a silence of the other members: a secondary does not stand for election
// and a primary does not step down, but both do so when the silence, without
// the standstill, was as long as ever.
func TestStandstillIsNoSilence(t *testing.T) {
	for name, leads := range map[string]bool{"secondary": false, "primary": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStandstill(t)
				if leads {
					s.Node.mu.Lock()
					s.win(electionTimedOut, -1)
					s.Node.mu.Unlock()
				}
				ran := s.timeout / 2
				if after, ended := s.run(ran); ended {
					t.Fatalf("gave up on the others after %s", after)
				}
				// Twice: an excused silence is no reason to start anew.
				for range 2 {
					time.Sleep(3 * s.timeout)
					after, ended := s.run(s.timeout / 10)
					if ended {
						t.Fatalf("gave up on the others %s after a standstill", after)
					}
					ran += after
				}
				after, ended := s.run(2 * s.timeout)
				// The part of a standstill before the timer was due is not excused.
				least, most := s.timeout-ran-2*s.timeout/pulses, s.timeout*115/100-ran
				if !ended || after < least || after > most {
					t.Errorf("gave up on the others after %s (%v), want between %s and %s", after, ended, least, most)
				}
			})
		})
	}
}

// TestNoLongerThanATimeout: no deadline is later than one set now, if a member was heard
// after a standstill and before the election loop ran again.
func TestNoLongerThanATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStandstill(t)
		if _, ended := s.run(s.timeout / 2); ended {
			t.Fatal("the member stood for election at once")
		}
		time.Sleep(5 * s.timeout)
		s.Node.mu.Lock()
		s.members[1].heard = time.Now()
		s.electionAt = time.Now().Add(s.timeout / 2) // as if the timeout were shorter now
		s.excuse(s.due, time.Now())
		heard, at := time.Until(s.members[1].heard), time.Until(s.electionAt)
		s.resetElection()
		random := time.Until(s.electionAt)
		s.excuse(s.due, time.Now())
		kept := time.Until(s.electionAt)
		s.Node.mu.Unlock()
		if heard > 0 || at > s.timeout || kept != random {
			t.Errorf("heard in %s, election in %s, or %s after a reset to %s", heard, at, kept, random)
		}
	})
}
