package share_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/share"
)

// soon is how long a change takes that nobody's death causes.
const soon = 7 * time.Second

// in runs a test in a bubble, on a group that has settled.
func in(t *testing.T, partitions, members int, test func(t *testing.T, f *fleet, before map[string]string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, partitions)
		f.startAll(members)
		time.Sleep(30 * time.Second)
		test(t, f, f.even(members))
	})
}

// state returns the status, and fails unless the owners in it are those of the works.
func (f *fleet) state() *share.Status {
	f.t.Helper()
	s := must.Get(share.State(context.Background(), f.board, f.store, "g"))(f.t)
	owners := f.owners()
	n := 0
	for _, p := range s.Partitions {
		if p.Holder != nil {
			n++
			if owners[p.Partition] != p.Holder.Member {
				f.t.Errorf("%+v of %+v, but %s works on it", p.Holder, p, owners[p.Partition])
			}
		}
	}
	if n != len(owners) {
		f.t.Errorf("%d leases, %d works", n, len(owners))
	}
	return s
}

// why returns the reasons of the moves, each once.
func (f *fleet) why(before map[string]string) string {
	f.t.Helper()
	var list []string
	for _, p := range f.state().Partitions {
		if before[p.Partition] != p.Member && !strings.Contains(strings.Join(list, "\n"), p.Why) {
			list = append(list, p.Why)
		}
	}
	return strings.Join(list, "\n")
}

// TestJoinAndLeave: one that joins gets its part of the others, and gives it back when it leaves.
func TestJoinAndLeave(t *testing.T) {
	in(t, 100, 6, func(t *testing.T, f *fleet, before map[string]string) {
		p := f.start("new", 0)
		time.Sleep(soon)
		with := f.even(7)
		if n, _ := moved(before, with); n != 14 || counts(with)["new"] != 14 {
			t.Errorf("%d moved, of %v", n, counts(with))
		}
		if why := f.why(before); !strings.Contains(why, "moved: m100") || !strings.HasSuffix(why, " had more than others") {
			t.Error(why)
		}
		p.shutdown()
		time.Sleep(soon)
		if n, needless := moved(with, f.even(6), "new"); n != 14 || needless != 0 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
		if why := f.why(with); why != "moved: new shuts down" && why != "moved: new has left" {
			t.Error(why)
		}
	})
}

// TestSlowShutdown: while the works of a member that shuts down take their time, their
// partitions wait; each goes on as its work has returned.
func TestSlowShutdown(t *testing.T) {
	in(t, 12, 3, func(t *testing.T, f *fleet, before map[string]string) {
		slow := f.all["m1001"]
		f.slow("m1001", "", 20*time.Second)
		began := time.Now()
		slow.stop(errors.New("shutdown"))
		time.Sleep(19 * time.Second)
		if got := f.owners(); len(got) != 12 {
			t.Errorf("%v", got)
		}
		if s := f.state(); s.Members[1].Running != 4 || s.Members[1].Assigned != 0 || !s.Members[1].Leaving {
			t.Errorf("%+v", s.Members)
		}
		<-slow.done
		time.Sleep(3 * time.Second)
		if n, needless := moved(before, f.even(2), "m1001"); n != 4 || needless != 0 || time.Since(began) > 24*time.Second {
			t.Errorf("%d moved, %d without need", n, needless)
		}
	})
}

// slow makes works of a member, on one partition or all, go on for a while when they should end.
func (f *fleet) slow(member, partition string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slows = func(m, p string) time.Duration {
		if m == member && (partition == "" || p == partition) {
			return d
		}
		return 0
	}
}

// TestDrain: the partitions of a drained member move, and it is a standby until that ends.
func TestDrain(t *testing.T) {
	in(t, 100, 5, func(t *testing.T, f *fleet, before map[string]string) {
		must.Succeed(t, share.Drain(context.Background(), f.board, "g", "m1002"))
		time.Sleep(soon)
		after := f.even(4)
		if n, needless := moved(before, after, "m1002"); n != 20 || needless != 0 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
		if why := f.why(before); why != "moved: m1002 drains" {
			t.Error(why)
		}
		f.all["m1002"].shutdown()
		f.start("m1002", 0)
		time.Sleep(soon)
		if n, _ := moved(after, f.even(4)); n != 0 {
			t.Errorf("%d moved when it came again", n)
		}
		must.Succeed(t, share.Undrain(context.Background(), f.board, "g", "m1002"))
		time.Sleep(soon)
		f.even(5)
	})
}

// TestDrainLast: a drain stops nothing for which there is no other place.
func TestDrainLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 10)
		f.start("a", 0)
		f.start("b", 3)
		time.Sleep(30 * time.Second)
		before := f.owners()
		must.Succeed(t, share.Drain(context.Background(), f.board, "g", "a"))
		time.Sleep(30 * time.Second)
		if n, _ := moved(before, f.owners()); n != 0 {
			t.Errorf("%d moved", n)
		}
		if why := f.state().Partitions[0].Why; why != "stays: a drains, but no other member has room" {
			t.Error(why)
		}
		must.Succeed(t, share.Undrain(context.Background(), f.board, "g", "a"))
		time.Sleep(soon)
		if why := f.state().Partitions[0].Why; why != "a drains no more" {
			t.Error(why)
		}
	})
}

// TestLimits: what nobody has room for waits until there is room.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 10)
		f.start("a", 2)
		f.start("b", 5)
		time.Sleep(20 * time.Second)
		if n := counts(f.owners()); n["a"] != 2 || n["b"] != 5 {
			t.Errorf("%v", n)
		}
		if p := f.state().Partitions[9]; p.Member != "" || p.Why != "no member has room" {
			t.Errorf("%+v", p)
		}
		before := f.owners()
		f.start("c", 0)
		time.Sleep(soon)
		if n, after := counts(f.owners()), f.owners(); n["a"] != 2 || n["b"] != 4 || n["c"] != 4 || len(after) != 10 {
			t.Errorf("%v", n)
		} else if n, _ := moved(before, after); n != 1 {
			t.Errorf("%d moved", n)
		}
		if why := f.why(before); !strings.Contains(why, "c has room now") {
			t.Error(why)
		}
	})
}

// TestListChanges: partitions come and go; while the list cannot be read they stay.
func TestListChanges(t *testing.T) {
	in(t, 30, 3, func(t *testing.T, f *fleet, before map[string]string) {
		list, _ := f.list(t.Context())
		list = append(list[10:], "q1", "q2")
		f.setList(append(slices.Clone(list), "q1")) // one of them twice
		time.Sleep(soon)
		f.setList(list)
		after := f.even(3)
		for p, m := range after {
			if before[p] == "" && !strings.HasPrefix(p, "q") {
				t.Errorf("%s of %s", p, m)
			}
		}
		for _, list := range [][]string{{"a", ""}, {strings.Repeat("x", 256)}, make([]string, share.MaxPartitions+1)} {
			for i := range list {
				if list[i] == "" && len(list) > 2 {
					list[i] = strconv.Itoa(i)
				}
			}
			f.setList(list)
			time.Sleep(soon)
			if n, _ := moved(after, f.owners()); n != 0 {
				t.Errorf("%d moved for a list that is wrong", n)
			}
		}
		f.mu.Lock()
		f.listErr = errors.New("no file")
		f.mu.Unlock()
		f.find(true).shutdown() // the next coordinator has never read it
		time.Sleep(soon)
		if n := len(f.owners()); n != 22 {
			t.Errorf("%d run", n)
		}
	})
}

// setList sets what there is to work on.
func (f *fleet) setList(list []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.partitions = list
}

// TestFails: a work that fails is tried again where it is, with the same term, and moves
// after the fifth time; nothing else does.
func TestFails(t *testing.T) {
	in(t, 12, 3, func(t *testing.T, f *fleet, before map[string]string) {
		bad := before["p0007"]
		f.fail(func(member, partition string) error {
			if member == bad && partition == "p0007" {
				return errors.New("no connection to the source")
			}
			return nil
		})
		terms := f.term("p0007")
		time.Sleep(10 * time.Second)
		s := must.Get(share.State(t.Context(), f.board, f.store, "g"))(t)
		if p := s.Partitions[7]; p.Member != bad || p.Holder == nil || f.term("p0007") != terms {
			t.Errorf("%+v", p)
		}
		time.Sleep(50 * time.Second)
		after := f.owners()
		if n, needless := moved(before, after, bad); n != 1 || needless != 0 || after["p0007"] == bad || len(after) != 12 {
			t.Errorf("%d moved, %d without need: %v", n, needless, after)
		}
		if why, want := f.why(before), "moved: failed 5 times on "+bad+": no connection to the source"; why != want {
			t.Errorf("%q, want %q", why, want)
		}
		time.Sleep(20 * time.Minute)
		// It has been tried there again, and is refused for longer.
		if n, _ := moved(before, f.owners()); n != 1 || f.owners()["p0007"] == bad {
			t.Errorf("%d moved", n)
		}
		f.fail(nil)
		time.Sleep(30 * time.Minute)
		f.even(3)
	})
}

// TestFailsEverywhere: it stays where it is, with pauses of a minute at most.
func TestFailsEverywhere(t *testing.T) {
	in(t, 4, 2, func(t *testing.T, f *fleet, before map[string]string) {
		f.fail(func(_, partition string) error {
			if partition == "p0000" {
				return errors.New("it is broken")
			}
			return nil
		})
		starts := f.starts()
		time.Sleep(time.Hour)
		if n := f.starts() - starts; n < 40 || n > 200 {
			t.Errorf("%d tries in an hour", n)
		}
		for p, m := range f.owners() {
			if p != "p0000" && before[p] != m {
				t.Errorf("%s moved", p)
			}
		}
		f.fail(nil)
		time.Sleep(5 * time.Minute)
		if s := f.state(); len(f.owners()) != 4 || len(s.Members[0].Refuses)+len(s.Members[1].Refuses) > 1 {
			t.Errorf("%+v", s)
		}
	})
}

// fail sets the outcome of works, also of those that run already.
func (f *fleet) fail(how func(member, partition string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = how
	close(f.changed)
	f.changed = make(chan struct{})
}

// TestFailsOnOne: a member on which everything fails ends up with nothing.
func TestFailsOnOne(t *testing.T) {
	in(t, 20, 4, func(t *testing.T, f *fleet, before map[string]string) {
		f.fail(func(member, _ string) error {
			if member == "m1000" {
				return errors.New("no disk")
			}
			return nil
		})
		time.Sleep(time.Minute)
		after := f.even(3)
		if n, needless := moved(before, after, "m1000"); n != 5 || needless != 0 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
	})
}
