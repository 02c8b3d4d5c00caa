package model

// The bounds of all instances.
const (
	processes = 3
	messages  = 3 // in flight at once
	maxTerm   = 4
	// far is the end of a lease after the store's clock has gone back.
	far = 100
)

// config is an instance: its bounds, what can happen in it, and the protections.
type config struct {
	// processes, messages in flight at once, terms, renewals in a term, and entries of the
	// source are as many as there can be.
	processes, messages, terms, renewals, entries int8
	// elections, forgets and takeovers are how often each can happen.
	elections, forgets, takeovers int8
	// ttl is how many ticks a lease lasts, slow how many of them a process's clock misses in
	// a lease at most.
	ttl, slow int8
	// stalls lets a renewal be executed long after the server has read its clock, skews
	// lets an election change the store's clock, ends lets a process end its attempt while
	// it has the lease, and give it back.
	stalls, skews, ends bool
	off                 protection // the one that is off
}

// protection is one of the rules that can be switched off.
type protection string

const (
	// A document that is written has the term, and a write needs it to be the writer's.
	fence protection = "fence"
	// A process stops using its lease some time before it ends.
	margin protection = "margin"
	// The term is raised only from the one that was read.
	compareAndSet protection = "compare-and-set"
	// A renewal takes effect only if no later one has.
	numberedRenewals protection = "numbered renewals"
	// A process uses a lease only once its grant is majority-committed.
	majority protection = "majority"
	// A write needs the lane to be where the writer left it.
	position protection = "position"
	// A process that has seen a term which was rolled back begins above it.
	above protection = "terms above those seen"
	// A lease that has not moved for longer than it lasts has ended, whatever the store's
	// clock says.
	watch protection = "unmoved leases end"
)

func (c *config) has(p protection) bool { return c.off != p }

// lasts is how long a process uses a lease after it has sent a renewal.
func (c *config) lasts() int8 {
	if c.has(margin) {
		return c.ttl - c.slow
	}
	return c.ttl
}

// unmoved is how long a process has to see a lease unchanged that has not ended by the
// store's clock.
func (c *config) unmoved() int8 { return c.ttl + 1 }

// store is what a member of the target has.
type store struct {
	// The lease: the holder is 0 for nobody, else a process and one; dur counts the
	// renewals, left is the time until it ends by the store's clock.
	term, holder, dur, left int8
	released                bool
	// number is the newest one on the lease's session, laneNumber on that of the lane.
	number, laneNumber int8
	// lane is the term of the lane's document, at is how many entries it says are written;
	// value is the entry that was written last.
	lane, at, value int8
}

// free reports whether a process may acquire the lease.
func (s *store) free(p int8) bool {
	return s.holder == 0 || s.holder == p+1 || s.released || s.left == 0
}

// has reports whether a process has the lease, in a term.
func (s *store) has(p, term int8) bool { return s.term == term && s.holder == p+1 }

// stage is how far a process is.
type stage int8

const (
	idle stage = iota
	raising
	granted
	committed
	leading
)

// proc is a process.
type proc struct {
	stage stage
	// term is that of its lease, seen the newest one it has seen.
	term, seen int8
	// until is the time until it stops using the lease, missed how many ticks its clock
	// has missed since it was renewed.
	until, missed int8
	renewals      int8
	// at is how many entries are written for what it knows. With waits, the reply to a
	// write is missing.
	at    int8
	waits bool
	// The lease as it was when it stood by, and for how long it has been so.
	watchTerm, watchDur, watched int8
}

// uses reports whether a process uses its lease.
func (p *proc) uses() bool { return p.stage > raising && p.until > 0 }

// kind is the kind of a message.
type kind int8

const (
	noMessage kind = iota
	raise
	renew
	renewed // a reply
	write
)

// message is one in flight.
type message struct {
	kind       kind
	proc, term int8
	found, dur int8 // raise: the lease that was read
	forced     bool // raise: a takeover
	moved      bool // raise: the lease must not have moved
	n          int8 // renew: its number
	begun      bool // renew: the server has read its clock,
	age        int8 // so long ago
	since      int8 // renew, renewed: since it was sent
	at         int8 // write: how many entries are written already
}

// state is one of the whole.
type state struct {
	// now is what the primary has, safe what a majority has: an election may go back
	// to that.
	now, safe store
	procs     [processes]proc
	msgs      [messages]message // sorted
	// What still can happen.
	elections, forgets, takeovers int8
	// For the invariants: the newest term in which a process has led, which process (and
	// one) has had a lease of each, and how many entries were acknowledged.
	led   int8
	owner [maxTerm + 1]int8
	acked int8
	// broken is the invariant that a step has broken.
	broken invariant
}
