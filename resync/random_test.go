package resync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// yard is a link whose collections are copied again, again and again, by processes that follow one another.
type yard struct {
	*world
	client.Chances

	target *client.Elected
	times  []bson.Timestamp // those of the target after each confirmed write
	hands  []*hand          // the processes; the last one leads
	now    uint32           // the source's newest entry
	acting *hand            // who has sent the command before which others do something, nil for none
	// needs is how many copies of a collection had begun when one that begins later was asked for, and that was confirmed.
	needs map[oplog.Namespace]int
	// out are the collections that were left out when that was last checked, in the link's copy with this number.
	out    []oplog.Namespace
	copies int64
}

// hand is a process, or an operator's command.
type hand struct {
	*process
	client.Process

	of *yard
}

func (y *yard) newHand(name string) *hand {
	return &hand{Process: client.Process{Name: name, Dies: 200, Loses: 80}, of: y}
}

// Call implements mongo.Caller: a command may not arrive, its reply may be lost, the process may die, and others may do something before it.
func (h *hand) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	y := h.of
	if ctx.Value(unhindered{}) != nil {
		return y.to.Call(ctx, cmd)
	}
	if y.Calm {
		return y.target.Call(ctx, cmd)
	}
	name := simcaller.Name(cmd)
	_, inTxn := cmd.Body.Lookup("autocommit").BooleanOK()
	if !inTxn && h.process != nil && y.acting == nil && y.One(12) { // a transaction would block them
		y.acting = h
		y.step() //nolint:contextcheck // others have contexts of their own
		y.acting = nil
	}
	return y.Send(&h.Process, name, func() (bson.Raw, error) { return y.arrives(ctx, cmd, name, inTxn) })
}

func (y *yard) arrives(ctx context.Context, cmd mongo.Command, name string, inTxn bool) (bson.Raw, error) {
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" && len(y.times) > 0 {
		if y.One(3) {
			at := y.times[max(0, len(y.times)-1-y.Rand.IntN(8))]
			y.Note("an election: the primary knows what a majority had at %d:%d", at.T, at.I)
			y.target.ElectAt(at)
		} else if y.One(2) {
			y.target.Learn()
		}
	}
	reply, err := y.target.Call(ctx, cmd)
	if err == nil && slices.Contains([]string{"insert", "update", "delete", "findAndModify", "commitTransaction"}, name) && (!inTxn || name == "commitTransaction") {
		y.confirmed() //nolint:contextcheck // it reads with one of its own
	}
	if name == "commitTransaction" && y.One(10) {
		y.Note("the reply to a commitTransaction is lost")
		return nil, &mongo.LostError{Host: "target", Err: errors.New("no answer")}
	}
	return reply, err
}

// confirmed notes that a write is confirmed: a majority has an entry of the primary's own term.
func (y *yard) confirmed() {
	y.target.Learn()
	y.times = append(y.times, must.Get(mongo.OperationTime(y.t.Context(), y.to))(y.t))
}

// step is what happens next.
func (y *yard) step() {
	y.check()
	switch n := y.Rand.IntN(20); {
	case n < 4:
		y.ask()
	case n < 5:
		y.succeed()
	case n < 6:
		y.release()
	case n < 11:
		y.copy(y.hands[y.Rand.IntN(len(y.hands))])
	default:
		y.turn(y.hands[len(y.hands)-1-min(len(y.hands)-1, max(0, y.Rand.IntN(6)-4))])
	}
	y.check()
}

// ask requests a copy, as an operator or because a late command may have changed the collection.
func (y *yard) ask() {
	ns := collections[y.Rand.IntN(len(collections))]
	y.by = y.newHand("an operator")
	requests := y.asks()
	y.by = nil
	was, begun := y.request(ns), y.begun[ns]
	ask, what := requests.Resync, "again"
	if y.One(2) {
		ask, what = requests.ResyncAgain, "again by another copy"
	}
	err := ask(y.t.Context(), ns)
	y.Note("asked to copy %s %s, which was %q and begun %d times: %v", ns, what, was.State, begun, err)
	if err == nil && (what != "again" || !was.Open() || was.State == request.Asked) {
		y.needs[ns] = begun
	}
}

// succeed makes another process the leader.
func (y *yard) succeed() {
	h := y.newHand(fmt.Sprintf("process %d", len(y.hands)))
	y.by = h
	h.process = y.start()
	y.by = nil
	h.cfg.Acquire = h.acquire
	y.hands = append(y.hands, h)
	y.Note("%s starts", h.Name)
	y.turn(h)
}

// turn is what a process does between two ends of attempts.
func (y *yard) turn(h *hand) {
	if h.Dead || h == y.acting {
		return
	}
	y.now += y.Rand.Uint32N(4)
	h.at.Paused = y.One(10)
	did, err := h.turn()
	y.Note("%s, in term %d, %s: %v; out %v", h.Name, h.term, did, err, h.LeftOut())
	switch {
	case h.Dead:
		h.kill()
	case lease.Lost(err):
		h.over()
		h.Reset()
		h.term, h.over = 0, h.Lead(h.ctx)
	}
}

// acquire acquires the lease. What fails then is tested elsewhere.
func (h *hand) acquire(ctx context.Context) (*checkpoint.Link, error) {
	was := h.of.Calm
	h.of.Calm = true
	link, err := h.process.acquire(ctx)
	h.of.Calm = was
	h.of.confirmed() //nolint:contextcheck // it reads with one of its own
	return link, err
}

func (h *hand) turn() (did string, err error) {
	y := h.of
	until, err := h.Merge(h.ctx, h.w.t.Context())
	if err != nil {
		return "merges", err
	}
	link, err := h.acquire(h.ctx)
	if err == nil {
		err = h.Begin(h.ctx, link)
	}
	if err != nil {
		return "begins", err
	}
	for ns, r := range h.running {
		if rn, _ := r.runner.(*runner); rn != nil {
			select {
			case <-rn.begun:
			case <-r.done:
			}
		}
		y.Note("%s copies %s", h.Name, ns)
	}
	if y.One(15) {
		return y.copyAnew(h, link)
	}
	if err := y.copyAll(h, link); err != nil {
		return "copies everything", err
	}
	if ns := collections[y.Rand.IntN(len(collections))]; y.One(20) {
		y.check()
		was, begun := y.request(ns), y.begun[ns]
		asked, err := h.Request(h.ctx, ns, oplog.OpTime{}, client.ErrKilled)
		if asked && err == nil && (!was.Open() || was.State == request.Asked) {
			y.needs[ns] = begun
		}
		return fmt.Sprintf("cannot apply an entry of %s: asked %t", ns, asked), err
	}
	from, to := link.State().Applied, until
	if to.IsNull() && !h.at.Paused {
		to = at(y.now)
	}
	if to.After(from) && !h.at.Paused {
		if err := advance(h.ctx, link, to); err != nil {
			return "applies", err
		}
		for _, ns := range collections {
			if _, in := h.Scope().Target(ns); in {
				h.w.apply(h.Name, ns, from, to)
			}
		}
		h.at.Applied = to
	}
	if !until.IsNull() {
		return fmt.Sprintf("applies up to %s", until), nil
	}
	_, err = h.look(h.ctx, link, map[oplog.Namespace]string{})
	return fmt.Sprintf("applies up to %s, and looks", to), err
}

// copyAnew begins another copy of the link, because the last one is void.
func (y *yard) copyAnew(h *hand, link *checkpoint.Link) (did string, err error) {
	next := checkpoint.Copy{Number: 1, Phase: checkpoint.Copying, Begin: at(y.now), FetchFrom: at(y.now), Host: "a:1"}
	if had := link.Copy(); had != nil {
		next.Number = had.Number + 1
	}
	if err = h.Stop(h.ctx); err == nil {
		err = link.BeginCopy(h.ctx, next, 0)
	}
	if err == nil {
		err = h.Remove(h.ctx)
	}
	return "copies everything anew", err
}

// copyAll goes on with a copy of the link.
func (y *yard) copyAll(h *hand, link *checkpoint.Link) error {
	c := link.Copy()
	h.at.Copying = c != nil && c.Phase != checkpoint.Copied
	switch {
	case !h.at.Copying:
		return nil
	case c.Phase == checkpoint.Copying:
		c.Phase, c.Stop, c.Cleared, c.Listed = checkpoint.Replaying, at(y.now+2), true, true
		return link.UpdateCopy(h.ctx, *c, func(*mongo.Txn) error { // its reply may be lost
			for _, ns := range collections {
				y.data[ns] = c.Begin
			}
			return nil
		})
	case link.State().Applied.Before(c.Stop):
		return nil
	}
	c.Phase = checkpoint.Copied
	return link.UpdateCopy(h.ctx, *c, nil)
}

// release releases the lock of a copy by hand.
func (y *yard) release() {
	s := mongostore.New(y.to, "replicator")
	for _, r := range must.Get(s.List(y.t.Context(), ""))(y.t) {
		if r.IsLocked() && y.One(2) {
			must.Succeed(y.t, s.Release(y.t.Context(), r.Name, r.ID))
			y.Note("%s is released by hand", r.Name)
		}
	}
}

// copy lets a part of a process go on, which may be one that does not lead any more.
func (y *yard) copy(h *hand) {
	if h.Dead || h == y.acting || len(h.running) == 0 {
		return
	}
	list := slices.Sorted(maps.Keys(h.running))
	r := h.running[list[y.Rand.IntN(len(list))]]
	rn := r.runner.(*runner) //nolint:forcetypeassert // it is of these tests
	select {
	case <-r.done:
		return
	default:
	}
	switch n := y.Rand.IntN(10); {
	case n < 2 && !y.Calm:
		why := []error{ErrInterrupted, ErrRestart, errors.New("too large")}[y.Rand.IntN(3)]
		rn.fails <- fmt.Errorf("it ends: %w", why)
		<-r.done
		y.Note("%s: the part of %s ends: %v", h.Name, r.part.NS, why)
	default:
		to := at(y.now)
		if !to.After(rn.applied) {
			to = rn.applied
		} else if err := rn.advance(h.ctx, to); err != nil {
			y.Note("%s: the part of %s cannot go on: %v", h.Name, r.part.NS, err)
			return
		}
		y.confirmed()
		rn.show(Status{Text: "steady", Consistent: true, Steady: true, Applied: to})
		y.Note("%s: the part of %s is at %s", h.Name, r.part.NS, to)
	}
}

// check looks at what the metadata say.
func (y *yard) check() {
	st := y.state()
	was, copies := y.out, int64(0)
	if st.Copy != nil {
		copies = st.Copy.Number
	}
	if copies != y.copies {
		was = nil
	}
	y.out, y.copies = nil, copies
	for _, ns := range collections {
		r := y.request(ns)
		out := slices.ContainsFunc(st.Gaps().LeftOut, func(out checkpoint.LeftOut) bool { return out.NS == ns })
		need, has := y.needs[ns]
		if out {
			y.out = append(y.out, ns)
		}
		switch {
		case r.State == request.Done && out:
			y.Fail("%s is done, and left out", ns)
		case !out && slices.Contains(was, ns) && has && y.begun[ns] <= need:
			y.Fail("the link has %s again, and its last copy began before it was asked for", ns)
		case r.State == request.Done && has && y.begun[ns] <= need:
			y.Fail("%s is done, and its last copy began before it was asked for", ns)
		}
		if reached := st.Reached().Applied; reached.After(y.data[ns]) {
			y.Fail("the link reports %s, and %s is at %s", reached, ns, y.data[ns])
		}
	}
	if y.t.Failed() {
		y.Fail("see above")
	}
}

// settle lets one more process copy all that was asked for, and compares.
func (y *yard) settle() {
	y.Calm = true
	y.target.Learn()
	y.succeed()
	h := y.hands[len(y.hands)-1]
	open := func() bool {
		return slices.ContainsFunc(collections, func(ns oplog.Namespace) bool { r := y.request(ns); return r.Open() || r.State == request.Failed })
	}
	for i := 0; open() && y.Fault == ""; i++ {
		if i == 30 {
			y.Fail("it does not end")
		}
		for _, ns := range collections {
			if y.request(ns).State == request.Failed {
				must.Succeed(y.t, y.asks().Resync(y.t.Context(), ns))
			}
		}
		for range h.running {
			y.copy(h)
		}
		y.turn(h)
		y.check()
	}
	y.now += 10
	y.turn(h)
	y.check()
	end := y.state().Applied
	for _, ns := range collections {
		if !y.data[ns].Equal(end) {
			y.Fail("%s is at %s, the link at %s", ns, y.data[ns], end)
		}
	}
	parts := must.Get(y.store(y.link, "").Parts(y.t.Context()))(y.t)
	for _, r := range must.Get(mongostore.New(y.to, "replicator").List(y.t.Context(), ""))(y.t) {
		if r.IsLocked() && strings.Contains(r.Who, "of link "+y.link+",") {
			y.Fail("%s is locked", r.Name)
		}
	}
	if out := y.state().LeftOut; len(parts) != 0 || len(out) != 0 {
		y.Fail("left: %v, out: %v", parts, out)
	}
}

// TestCopiesAtRandom: exactly one link applies each entry to each collection, a collection that was asked for is copied by a copy that
// begins later, and nothing of the copies is left, whatever processes and operators do between each other's commands, whichever of them die, whose
// replies are lost, and after elections of the target. RESYNC_RANDOM is how many times.
func TestCopiesAtRandom(t *testing.T) {
	t.Parallel()
	times, _ := strconv.Atoi(os.Getenv("RESYNC_RANDOM"))
	first, _ := strconv.Atoi(os.Getenv("RESYNC_FIRST"))
	for seed := first; seed < first+cmp.Or(times, 15); seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			set := must.Get(mongosim.Start(t.Context(), mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.NoMoods("it has faults of its own"), TTLInterval: -1, TransactionLifetime: 100 * time.Millisecond}))(t)
			t.Cleanup(set.Close)
			to := &target{Caller: simcaller.Caller{Set: set}}
			y := &yard{
				world: newWorld(t, to, "link"), Chances: client.Chances{Rand: rand.New(rand.NewPCG(5, uint64(seed)))}, target: &client.Elected{Caller: to},
				now: 100, needs: map[oplog.Namespace]int{},
			}
			began := time.Now()
			y.succeed()
			y.Play(t, 50, y.step, y.settle)
			t.Logf("%s: %v begun", time.Since(began), y.begun)
		})
	}
}
