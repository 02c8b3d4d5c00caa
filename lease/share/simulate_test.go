package share_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/lease/share/sharetest"
)

// fleetSize is that of the simulations: partitions and members. SHARE_FLEET=2000x200 sets it.
func fleetSize(t *testing.T) (partitions, members int) {
	partitions, members = 120, 12
	if text := os.Getenv("SHARE_FLEET"); text != "" {
		if n, err := fmt.Sscanf(text, "%dx%d", &partitions, &members); n != 2 {
			t.Fatalf("SHARE_FLEET=%s: %v", text, err)
		}
	}
	return partitions, members
}

// outages returns how long each partition stood still that somebody else works on than
// before, sorted.
func (f *fleet) outages(before, after map[string]string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []time.Duration
	for p, was := range before {
		if after[p] != was {
			list = append(list, f.began[p].Sub(f.ended[p]))
		}
	}
	slices.Sort(list)
	return list
}

func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "none"
	}
	at := func(percent int) string {
		return list[(len(list)-1)*percent/100].Round(100 * time.Millisecond).String()
	}
	return fmt.Sprintf("%d moved; until each ran again: p50 %s, p99 %s, at most %s", len(list), at(50), at(99), at(100))
}

// TestTenDie: ten of 200 members die at once, with the coordinator, or three of a smaller
// fleet; at five moments between two renewals.
func TestTenDie(t *testing.T) {
	partitions, members := fleetSize(t)
	dying := max(members/20, 3)
	var all []time.Duration
	for phase := range 5 {
		in(t, partitions, members, func(t *testing.T, f *fleet, before map[string]string) {
			time.Sleep(time.Duration(phase) * 400 * time.Millisecond)
			gone := []string{f.find(true).name}
			for name := range f.all {
				if len(gone) < dying && name != gone[0] {
					gone = append(gone, name)
				}
			}
			for _, name := range gone {
				p := f.all[name]
				p.net.set(cut)
				p.stop(errKill)
			}
			time.Sleep(prompt)
			after := f.even(members - dying)
			if _, needless := moved(before, after, gone...); needless != 0 {
				t.Errorf("%d moved without need", needless)
			}
			all = append(all, f.outages(before, after)...)
		})
	}
	slices.Sort(all)
	t.Logf("%d partitions, %d members, %d die, one of them the coordinator, at 5 moments: %s", partitions, members, dying, spread(all))
}

// TestRollingRestart: all members are restarted, one after the other, each with a new name, as a
// Deployment does it: the new one first.
func TestRollingRestart(t *testing.T) {
	partitions, members := fleetSize(t)
	in(t, partitions, members, func(t *testing.T, f *fleet, _ map[string]string) {
		starts, began, plans := f.starts(), time.Now(), f.board.Calls(sharetest.Propose)
		old := make([]*process, 0, members)
		for _, p := range f.all {
			old = append(old, p)
		}
		f.watchOutages()
		for i, p := range old {
			f.start("n"+strconv.Itoa(1000+i), 0)
			time.Sleep(2 * time.Second)
			p.stop(errors.New("restart"))
			<-p.done
			time.Sleep(time.Second)
		}
		took := time.Since(began)
		time.Sleep(prompt)
		f.even(members)
		n := f.starts() - starts
		// Each of the old ones moves its part away, each of the new ones gets one.
		if n > 2*partitions+3*members {
			t.Errorf("%d moves", n)
		}
		list := f.stood()
		if last := list[len(list)-1]; last > soon {
			t.Errorf("a partition stood still for %s", last)
		}
		t.Logf("%d partitions, %d members restarted in %s: %d plans; %s", partitions, members, took, f.board.Calls(sharetest.Propose)-plans, spread(list))
	})
}

// watchOutages begins to record how long partitions stand still.
func (f *fleet) watchOutages() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gaps = []time.Duration{}
}

// stood returns that, sorted.
func (f *fleet) stood() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.gaps)
	return f.gaps
}

// TestFirstStart: members that start together get their parts at once, and none moves.
func TestFirstStart(t *testing.T) {
	partitions, members := fleetSize(t)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, partitions)
		f.startAll(members)
		began := time.Now()
		for len(f.owners()) < partitions && time.Since(began) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("%d partitions, %d members: all run after %s", partitions, members, time.Since(began))
		time.Sleep(30 * time.Second)
		f.even(members)
		if f.starts() != partitions {
			t.Errorf("%d partitions began %d times", partitions, f.starts())
		}
	})
}

// TestCost: what a settled group costs the store in a minute is what doc.go says.
func TestCost(t *testing.T) {
	partitions, members := fleetSize(t)
	in(t, partitions, members, func(t *testing.T, f *fleet, _ map[string]string) {
		count := func() map[string]int {
			n := map[string]int{"acquire": f.store.Calls("acquire"), "renew": f.store.Calls("renew"), "release": f.store.Calls("release"), "list": f.store.Calls("list")}
			for _, call := range []string{sharetest.Beat, sharetest.Members, sharetest.Plan, sharetest.Propose, sharetest.Leave} {
				n[call] = f.board.Calls(call)
			}
			return n
		}
		was := count()
		const minutes = 3
		time.Sleep(minutes * time.Minute)
		got := count()
		for call := range got {
			got[call] = (got[call] - was[call]) / minutes
		}
		for call, want := range map[string]int{
			"renew": 30*partitions + 60, // the coordinator's lease
			"beat":  30 * members, "plan": 30*members + 30, "members": 30, "propose": 0, "leave": 0, "release": 0, "list": 0,
		} {
			if got[call] > want+want/50 || got[call] < want-want/50 {
				t.Errorf("%s: %d calls per minute, want %d", call, got[call], want)
			}
		}
		// Three deputies ask 75 times, the others 6 times.
		if want := 3*75 + 6*(members-4); got["acquire"] > want*5/4 || got["acquire"] < want*3/4 {
			t.Errorf("%d acquisitions per minute, want %d", got["acquire"], want)
		}
		t.Logf("%d partitions, %d members, calls per minute: %v", partitions, members, got)
	})
}

// TestRunEnded: a context that is over ends everything, also if nothing has begun.
func TestRunEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3)
		p := f.start("a", 0)
		p.shutdown()
		if members, _, _ := f.board.Members(context.Background(), "g"); len(members) != 0 {
			t.Errorf("%+v", members)
		}
	})
}
