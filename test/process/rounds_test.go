package process

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

const (
	// roundTTL and roundRenew are the lease of the processes of TestRounds: short, so
	// that its rounds are.
	roundTTL, roundRenew = 2 * time.Second, 400 * time.Millisecond
	// far is a limit that only a process exceeds that does not get there at all, slack how
	// much later than it should a process may lead on a loaded machine.
	far, slack = time.Minute, 40 * time.Second
)

// kinds are the kinds of rounds.
var kinds = []struct {
	name string
	run  func(r *rounds, leader *slot) *slot
}{
	{"kill", (*rounds).kill},
	{"suspend", (*rounds).suspend},
	{"away from the target", (*rounds).loseTarget},
	{"away from the source", (*rounds).loseSource},
	{"end", (*rounds).end},
	{"failover", (*rounds).failover},
	{"kill a standby", (*rounds).killStandby},
}

// TestRounds: three processes of one link under load. In each round the one that leads is
// killed, suspended for longer than its lease, told to end, or cut off from the target or
// the source alone; or the target has a failover; or one that stands by is killed. After
// each the target equals the source, and a witness has found nothing in the target's
// oplog that must not be there. REPLICATOR_ROUNDS says how many rounds, each kind in
// turn; REPLICATOR_SEED chooses the rest.
func TestRounds(t *testing.T) {
	skipBig(t)
	seed, n := number(t, "REPLICATOR_SEED", 1), number(t, "REPLICATOR_ROUNDS", len(kinds))
	r := startRounds(t, build(t), seed)
	r.short = n <= len(kinds)
	for i := range n {
		if i%len(kinds) == 0 {
			r.rnd.Shuffle(len(r.order), func(a, b int) { r.order[a], r.order[b] = r.order[b], r.order[a] })
		}
		r.round(i, kinds[r.order[i%len(kinds)]].name, kinds[r.order[i%len(kinds)]].run)
	}
	var all []time.Duration
	for _, kind := range slices.Sorted(maps.Keys(r.without)) {
		t.Logf("time without a leader, %s: %s", kind, percentiles(r.without[kind]))
		all = append(all, r.without[kind]...)
	}
	t.Logf("time without a leader: %s", percentiles(all))
	t.Logf("%d rounds, %d grants, %d renewals, %d changes of a lane before its fence", n, r.witness.grants, r.witness.renewals, r.witness.old)
}

// percentiles describes durations.
func percentiles(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	at := func(p int) time.Duration { return all[(len(all)-1)*p/100].Round(time.Millisecond) }
	return fmt.Sprintf("p50 %s, p99 %s, at most %s, of %d", at(50), at(99), at(100), len(all))
}

// slot is one of the processes, and its network.
type slot struct {
	*life
	source, target *gate
	args           []string
}

type rounds struct {
	*harness
	seed    int
	slots   []*slot
	order   []int
	witness *witness
	// without are the times in which no process led, by the kind of round.
	without map[string][]time.Duration
	kind    string
	short   bool
}

// startRounds starts the sets and the processes, and waits until one leads.
func startRounds(t *testing.T, program string, seed int, args ...string) *rounds {
	t.Helper()
	set := func(members int, seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{
			Members: members, Seed: seed, TransactionLifetime: 5 * time.Second, Moods: mongosim.GentleMoods("the time is measured"),
		})
	}
	h := &harness{TB: t, program: program, rnd: rand.New(rand.NewPCG(uint64(seed), 17)), source: set(1, int64(seed)), target: set(3, int64(seed)+1)}
	h.noCappedKeys = true // the witness knows one capped collection by its name
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	h.lead = []string{"--lease-ttl", roundTTL.String(), "--lease-renew", roundRenew.String()}
	w, err := newWitness()
	if err != nil {
		t.Fatal(err)
	}
	r := &rounds{harness: h, seed: seed, witness: w, without: map[string][]time.Duration{}}
	for i := range kinds {
		r.order = append(r.order, i)
	}
	t.Cleanup(r.tell)
	for range 3 {
		s := &slot{source: newGate(t, h.source), target: newGate(t, h.target), args: append([]string{"--spool-dir", t.TempDir(), "--checkpoint-interval", "100ms"}, args...)}
		for _, m := range s.source.maps {
			s.args = append(s.args, "--source-host-map", m)
		}
		for _, m := range s.target.maps {
			s.args = append(s.args, "--target-host-map", m)
		}
		s.life = h.start(s.args...)
		r.slots = append(r.slots, s)
	}
	// One that is still verifying the target must not find the data of the others there.
	for _, s := range r.slots {
		r.within(far, "all processes have begun", func() bool { return strings.Contains(s.said.String(), `msg="state changed"`) })
	}
	return r
}

// tell logs the end of what the processes said, if the test has failed.
func (r *rounds) tell() {
	if !r.Failed() {
		return
	}
	r.Logf("seed %d, a round of %q; the link: %+v", r.seed, r.kind, r.witness.links[link])
	for i, s := range r.slots {
		_ = s.cmd.Process.Kill()
		select {
		case err := <-s.ended:
			r.Logf("process %d: %v", i, err)
		case <-time.After(time.Second): // it was read already
		}
		lines := strings.Split(s.said.String(), "\n")
		r.Logf("process %d, pid %d:\n%s", i, s.cmd.Process.Pid, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

// round is one round.
func (r *rounds) round(i int, kind string, run func(r *rounds, leader *slot) *slot) {
	r.kind = kind
	began := time.Now()
	leader, _ := r.await(nil, lease.Record{}, began)
	r.within(far, "the link exists", r.exists)
	end := r.write("shop", uint64(r.seed)<<16+uint64(i))
	leader.until(time.Duration(r.rnd.Int64N(int64(800*time.Millisecond))), nil)
	restarted := run(r, leader)
	if restarted != nil {
		restarted.life = r.start(restarted.args...)
	}
	end()
	want := r.newest()
	r.within(patience, "what was written is applied", func() bool { return !r.reached().Before(want) })
	r.equal()
	r.within(far, "all lanes have the link's term", func() bool {
		p, err := r.target.AwaitPrimary(r.Context())
		if err == nil {
			err = r.witness.read(p)
		}
		if err != nil {
			r.Fatal(err)
		}
		return slices.Equal(r.witness.terms(), []int64{r.witness.links[link].Term})
	})
	if r.Failed() {
		r.Fatalf("round %d", i)
	}
	last := "-"
	if all := r.without[kind]; len(all) > 0 {
		last = all[len(all)-1].Round(time.Millisecond).String()
	}
	r.Logf("round %d, %s: %s without a leader, term %d, %s in all", i, kind, last, r.witness.links[link].Term, time.Since(began).Round(time.Millisecond))
}

// within waits until done says so. No process may end by itself meanwhile.
func (r *rounds) within(limit time.Duration, what string, done func() bool) {
	r.Helper()
	for began := time.Now(); !done(); {
		for _, s := range r.slots {
			select {
			case err := <-s.ended:
				r.Fatalf("a process ended by itself while the test waits until %s: %v", what, err)
			default:
			}
		}
		if time.Since(began) > limit {
			r.Fatalf("after %s it is not so that %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lease reads the link's lease, of nothing while the target does not say.
func (r *rounds) lease() lease.Record {
	doc, err := metadata.FindOne(r.Context(), r.to, "replicator", metadata.Links, metadata.ByID(link))
	if err != nil || doc == nil {
		return lease.Record{}
	}
	return lease.ReadRecord(metadata.NewReader(doc))
}

// await waits until a process leads that is not old and has renewed or acquired the lease
// since a record was read. It returns the time from then on.
func (r *rounds) await(old *slot, since lease.Record, from time.Time) (now *slot, took time.Duration) {
	r.Helper()
	r.within(far, "a process leads", func() bool {
		rec := r.lease()
		if rec.Grant.Released || rec.Grant.Expires <= bson.NewDateTimeFromTime(time.Now()) || rec.Grant == since.Grant {
			return false
		}
		i := slices.IndexFunc(r.slots, func(s *slot) bool {
			return s != old && strings.Contains(rec.Holder, fmt.Sprintf(":pid%d:", s.cmd.Process.Pid))
		})
		if i >= 0 {
			now = r.slots[i]
		}
		return i >= 0
	})
	return now, time.Since(from)
}

// lost waits until another process than old leads, and records how long that takes.
func (r *rounds) lost(old *slot, limit time.Duration) {
	r.Helper()
	_, took := r.await(old, lease.Record{}, time.Now())
	if r.without[r.kind] = append(r.without[r.kind], took); took > limit+slack {
		r.Fatalf("no process led for %s, the limit is %s", took, limit)
	}
}

// signal sends a signal.
func (l *life) signal(s syscall.Signal) {
	if err := l.cmd.Process.Signal(s); err != nil {
		l.h.Fatal(err)
	}
}

// soon is a random time, after which a fault ends.
func (r *rounds) soon(most time.Duration) time.Duration {
	return time.Duration(r.rnd.Int64N(int64(most)))
}

func (r *rounds) kill(leader *slot) *slot {
	leader.kill()
	r.lost(leader, roundTTL+2*roundRenew)
	return leader
}

func (r *rounds) end(leader *slot) *slot {
	leader.end()
	r.lost(leader, 2*roundRenew)
	return leader
}

func (r *rounds) suspend(leader *slot) *slot {
	leader.signal(syscall.SIGSTOP)
	r.lost(leader, roundTTL+2*roundRenew)
	leader.until(r.soon(roundTTL), nil)
	leader.signal(syscall.SIGCONT)
	return nil
}

func (r *rounds) loseTarget(leader *slot) *slot {
	w := cut + way(r.rnd.IntN(int(ways-cut)))
	leader.target.set(w)
	r.lost(leader, roundTTL+2*roundRenew)
	leader.until(r.soon(roundTTL), nil)
	leader.target.set(open)
	r.Logf("the target was %s", w)
	return nil
}

// loseSource: the leader reads nothing, and does not lose its lease for that alone. It
// does not try a member that refuses connections for the next ten seconds, so that is
// only for long runs.
func (r *rounds) loseSource(leader *slot) *slot {
	w := silent
	if !r.short {
		w = cut + way(r.rnd.IntN(int(ways-cut)))
	}
	leader.source.set(w)
	leader.until(r.soon(roundTTL), nil)
	leader.source.set(open)
	r.Logf("the source was %s", w)
	return nil
}

func (r *rounds) failover(*slot) *slot {
	was, err := r.target.AwaitPrimary(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	before, at := r.lease(), time.Now()
	how := []string{"step down", "kill", "isolate"}[r.rnd.IntN(3)]
	switch how {
	case "step down":
		err = r.target.StepDown(r.Context())
	case "kill":
		err = was.Kill()
	case "isolate":
		r.target.Isolate(was.ID())
	}
	if err == nil && how != "step down" {
		_, err = r.target.AwaitNewPrimary(r.Context(), was)
	}
	switch {
	case err == nil && how == "kill":
		err = was.Start()
	case err == nil && how == "isolate":
		r.target.Rejoin(was.ID())
	}
	if err != nil {
		r.Fatalf("%s: %v", how, err)
	}
	_, took := r.await(nil, before, at)
	r.without[r.kind] = append(r.without[r.kind], took)
	r.Logf("the failover: %s", how)
	return nil
}

func (r *rounds) killStandby(leader *slot) *slot {
	i := slices.Index(r.slots, leader)
	other := r.slots[(i+1+r.rnd.IntN(len(r.slots)-1))%len(r.slots)]
	other.kill()
	leader.until(r.soon(roundTTL/2), nil)
	return other
}
