package netfault

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/mongosim/fault"
)

// Any stands for every end when faults are set or healed. Set("m1", Any, f) is
// how to freeze or isolate a member.
const Any = "*"

// Client is the end that stands for everything outside of the process.
const Client = "client"

var (
	// ErrCut says that the link between two ends is cut.
	ErrCut = errors.New("the link is cut")
	// ErrReset says that a connection was broken off after its bytes.
	ErrReset = errors.New("the connection was reset on purpose")
)

// Network holds the faults of the links between named ends. Ends need not be
// declared; a link without faults is perfect. All methods may be called from
// any goroutine.
type Network struct {
	seed uint64

	// mu guards the fields below. Nothing waits with it locked.
	mu     sync.Mutex
	rules  map[ends][]rule
	links  map[ends]*link
	order  []*link // by age, so that a cut closes in the same order each time
	lastID int
}

// NewNetwork returns a network without faults. The seed decides all jitter.
func NewNetwork(seed uint64) *Network {
	return &Network{seed: seed, rules: map[ends][]rule{}, links: map[ends]*link{}}
}

// ends names a link's two ends, in their alphabetical order.
type ends struct{ a, b string }

func sorted(from, to string) (e ends, swapped bool) {
	if from <= to {
		return ends{from, to}, false
	}
	return ends{to, from}, true
}

// matches reports whether a rule for e holds for the link l, as the rule's ends
// stand and with them swapped.
func (e ends) matches(l ends) (straight, swapped bool) {
	is := func(rule, end string) bool { return rule == Any || rule == end }
	return is(e.a, l.a) && is(e.b, l.b), is(e.a, l.b) && is(e.b, l.a)
}

// rule is a fault that was set, with its direction as seen from the first end.
type rule struct {
	fault.Fault
	// id distinguishes settings of faults.
	id int
}

// link is the state of one link.
type link struct {
	ends  ends
	paths [2]*path // from a to b, and back
	conns []*Conn  // guarded by the network's mu
}

// path is one direction of a link.
type path struct {
	name string
	cond atomic.Pointer[condition]

	// mu guards rng.
	mu  sync.Mutex
	rng *rand.Rand
}

// draw draws a latency.
func (p *path) draw(c *condition) time.Duration {
	if c.jitter == 0 {
		return c.latency
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.latency + time.Duration(p.rng.Int64N(int64(c.jitter)+1))
}

// condition is the combined effect of all faults on one path. It is replaced,
// never changed.
type condition struct {
	state
	// changed is closed when the condition no longer holds.
	changed chan struct{}
}

type state struct {
	cut, dropped, frozen bool
	// latency and jitter are the sums of all, rate and reset the least.
	latency, jitter time.Duration
	rate            int64 // bytes per second, 0 for no limit
	reset           int64 // bytes
	resetID         int   // which rule reset is from, 0 for none
}

func (s *state) blocked() bool { return s.dropped || s.frozen }

func (s *state) delays() bool { return s.latency > 0 || s.jitter > 0 }

func (s *state) add(r rule) {
	switch r.Kind {
	case fault.Latency:
		s.latency += r.Delay
		s.jitter += r.Jitter
	case fault.Drop, fault.HalfOpen:
		s.dropped = true
	case fault.Cut:
		s.cut = true
	case fault.Reset:
		// Of two equal ones the older one, whatever their order.
		if s.resetID == 0 || r.Bytes < s.reset || r.Bytes == s.reset && r.id < s.resetID {
			s.reset, s.resetID = r.Bytes, r.id
		}
	case fault.Rate:
		if s.rate == 0 || r.Bytes < s.rate {
			s.rate = r.Bytes
		}
	case fault.Freeze:
		s.frozen = true
	}
}

// Set gives the link between from and to these faults, replacing those set
// before under the same names; none heals it. Either name may be [Any]; such
// faults come on top of those of single links. Directions are as seen from the
// end from. It changes nothing if a fault is invalid, which it returns as an
// [*fault.InvalidError].
func (n *Network) Set(from, to string, faults ...fault.Fault) error {
	for _, f := range faults {
		if err := f.Validate(); err != nil {
			return err
		}
	}
	e, swapped := sorted(from, to)
	n.mu.Lock()
	var rules []rule
	for _, f := range faults {
		if swapped {
			f.Direction = f.Direction.Opposite()
		}
		n.lastID++
		rules = append(rules, rule{f, n.lastID})
	}
	n.rules[e] = rules
	broken := n.refresh()
	n.mu.Unlock()
	for _, c := range broken {
		c.fail(ErrCut, true)
	}
	return nil
}

// Heal takes away the faults that were set for these two names, in either
// order. Those that were set with [Any] stay.
func (n *Network) Heal(from, to string) {
	e, _ := sorted(from, to)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.rules, e)
	n.refresh()
}

// HealAll takes away all faults.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
	n.refresh()
}

// refresh applies the rules to all links. It returns the connections that have
// to be closed, which cannot be done while mu is locked.
func (n *Network) refresh() (broken []*Conn) {
	for _, l := range n.order {
		n.apply(l)
		if l.paths[0].cond.Load().cut {
			broken = append(broken, l.conns...)
		}
	}
	return broken
}

// apply gives the link the condition that the rules make.
func (n *Network) apply(l *link) {
	var states [2]state
	for e, rules := range n.rules {
		straight, swapped := e.matches(l.ends)
		for _, r := range rules {
			// Once per path, even if the rule matches both ways around.
			ab := straight && r.Direction != fault.In || swapped && r.Direction != fault.Out
			ba := straight && r.Direction != fault.Out || swapped && r.Direction != fault.In
			for i, hit := range [2]bool{ab, ba} {
				if hit {
					states[i].add(r)
				}
			}
		}
	}
	for i, p := range l.paths {
		old := p.cond.Load()
		if old != nil && old.state == states[i] {
			continue
		}
		p.cond.Store(&condition{state: states[i], changed: make(chan struct{})})
		if old != nil {
			close(old.changed)
		}
	}
}

// link returns the link between two ends, and the index of the path from the
// first to the second. mu is locked.
func (n *Network) link(from, to string) (l *link, out int) {
	e, swapped := sorted(from, to)
	if swapped {
		out = 1
	}
	if l = n.links[e]; l != nil {
		return l, out
	}
	l = &link{ends: e}
	for i, name := range [2]string{e.a + " to " + e.b, e.b + " to " + e.a} {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // a hash takes everything
		l.paths[i] = &path{name: name, rng: rand.New(rand.NewPCG(n.seed, h.Sum64()))}
	}
	n.links[e] = l
	n.order = append(n.order, l)
	n.apply(l)
	return l, out
}

// Conn wraps the end of a connection that local holds; its other end is at
// remote. Bytes written to it travel from local to remote. The result owns
// under and closes it. On a link that is cut the connection is closed already.
func (n *Network) Conn(local, remote string, under net.Conn) *Conn {
	n.mu.Lock()
	l, out := n.link(local, remote)
	c := newConn(n, l, out, under)
	l.conns = append(l.conns, c)
	cut := l.paths[0].cond.Load().cut
	n.mu.Unlock()
	if cut {
		c.fail(ErrCut, true)
	}
	return c
}

func (n *Network) forget(c *Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.link.conns = slices.DeleteFunc(c.link.conns, func(other *Conn) bool { return other == c })
}

// Delay returns when a message that from sends to to would arrive: after the
// latency, and not before the path carries anything. It returns [ErrCut] if the
// link is cut, also while the message is on its way, and the cause of ctx once
// that ends. A message held back by a black hole is late, not lost, as over TCP:
// it arrives when the link is healed. Rates and resets do not concern it.
func (n *Network) Delay(ctx context.Context, from, to string) error {
	n.mu.Lock()
	l, out := n.link(from, to)
	n.mu.Unlock()
	p := l.paths[out]
	cond := p.cond.Load()
	due := time.Now().Add(p.draw(cond))
	for ; ; cond = p.cond.Load() {
		if cond.cut {
			return fmt.Errorf("netfault: deliver from %s: %w", p.name, ErrCut)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("netfault: deliver from %s: %w", p.name, context.Cause(ctx))
		}
		var arrival <-chan time.Time // never, as long as the path is blocked
		if !cond.blocked() {
			left := time.Until(due)
			if left <= 0 {
				return nil
			}
			arrival = time.After(left)
		}
		select {
		case <-arrival:
		case <-cond.changed:
		case <-ctx.Done():
		}
	}
}
