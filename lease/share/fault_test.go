package share_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

// TestDies: the partitions of a member that dies run elsewhere in time, and no others move. So
// do those of a coordinator.
func TestDies(t *testing.T) {
	for name, coordinates := range map[string]bool{"Member": false, "Coordinator": true} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // the waits have a jitter
				in(t, 30, 7, func(t *testing.T, f *fleet, before map[string]string) {
					time.Sleep(rand.N(2 * time.Second))
					dead := f.find(coordinates)
					dead.kill()
					time.Sleep(prompt)
					if n, needless := moved(before, f.even(6), dead.name); needless > 0 || n > 5 {
						t.Errorf("%d moved, %d without need", n, needless)
					}
				})
			}
		})
	}
}

// TestDiesUnlisted: the partitions of a member that dies run elsewhere also while the list of them is not answered.
func TestDiesUnlisted(t *testing.T) {
	in(t, 30, 7, func(t *testing.T, f *fleet, before map[string]string) {
		f.mu.Lock()
		f.unlisted = true
		f.mu.Unlock()
		dead := f.find(false)
		dead.kill()
		time.Sleep(time.Minute)
		if n, needless := moved(before, f.even(6), dead.name); needless > 0 || n > 5 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
	})
}

// TestListsSlowly: a list of the partitions that always takes longer than a round is used nevertheless, and keeps no partition of a member
// that dies from running elsewhere.
func TestListsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 30)
		f.listTakes = 7 * time.Second
		f.startAll(7)
		time.Sleep(time.Minute)
		before := f.even(7)
		dead := f.find(false)
		dead.kill()
		time.Sleep(prompt)
		if n, needless := moved(before, f.even(6), dead.name); needless > 0 || n > 5 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
		list, _ := f.list(t.Context())
		f.setList(append(list, "q"))
		time.Sleep(30 * time.Second)
		if f.owners()["q"] == "" {
			t.Error("a partition that was added is nobody's")
		}
	})
}

// TestComesAgain: a member that is killed and started again at once gets its partitions back
// when their leases have ended, and nothing moves.
func TestComesAgain(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		f.all["m1001"].kill()
		time.Sleep(time.Second)
		f.start("m1001", 0)
		time.Sleep(prompt)
		if n, _ := moved(before, f.even(4)); n != 0 {
			t.Errorf("%d moved", n)
		}
	})
}

// TestSameName: the second process with a name waits while the first is there.
func TestSameName(t *testing.T) {
	in(t, 12, 3, func(t *testing.T, f *fleet, before map[string]string) {
		first := f.all["m1001"]
		second := f.start("m1001", 0)
		time.Sleep(time.Minute)
		if n, _ := moved(before, f.even(3)); n != 0 || len(second.Running()) != 0 || len(first.Running()) != 4 {
			t.Errorf("%d moved; the second has %q", n, second.Running())
		}
		first.kill()
		time.Sleep(prompt)
		if n, _ := moved(before, f.even(3)); n != 0 || len(second.Running()) != 4 {
			t.Errorf("%d moved; the second has %q", n, second.Running())
		}
	})
}

// TestReplaced: a process that was suspended, and whose name another has meanwhile, stops what it
// is still at, and waits.
func TestReplaced(t *testing.T) {
	in(t, 12, 3, func(t *testing.T, f *fleet, before map[string]string) {
		first := f.all["m1001"]
		first.net.set(frozen)
		time.Sleep(4 * time.Second)
		second := f.start("m1001", 0)
		time.Sleep(1500 * time.Millisecond)
		if len(first.Running()) != 4 {
			t.Errorf("its leases have ended: it has %q", first.Running())
		}
		first.net.set(up)
		time.Sleep(prompt)
		if n, _ := moved(before, f.even(3)); n != 0 || len(first.Running()) != 0 || len(second.Running()) != 4 {
			t.Errorf("%d moved; the first has %q, the second %q", n, first.Running(), second.Running())
		}
		f.all["first"] = first // close it, too
	})
}

// TestPlanLost: members that have seen a plan which the store has lost, as one that is restored, follow the next one nevertheless.
func TestPlanLost(t *testing.T) {
	in(t, 12, 3, func(_ *testing.T, f *fleet, _ map[string]string) {
		f.start("m1003", 0)
		time.Sleep(prompt)
		f.even(4)
		f.board.Undo("g", 1) // the move of partitions to the fourth
		f.all["m1003"].kill()
		delete(f.all, "m1003")
		time.Sleep(prompt)
		f.even(3)
	})
}

// TestPlanLostUnnoticed: what the store has lost of a plan is planned again, although nothing has changed since: also a member that
// was started again, and has seen an earlier plan alone or none, gets its partitions, and none moves.
func TestPlanLostUnnoticed(t *testing.T) {
	for name, plans := range map[string]int{"one": 1, "all": 100} {
		t.Run(name, func(t *testing.T) {
			in(t, 12, 3, func(t *testing.T, f *fleet, _ map[string]string) {
				f.start("m1003", 0)
				time.Sleep(prompt)
				before := f.even(4)
				f.board.Undo("g", plans)
				f.all["m1003"].kill()
				time.Sleep(time.Second)
				f.start("m1003", 0)
				time.Sleep(prompt)
				if n, _ := moved(before, f.even(4)); n != 0 {
					t.Errorf("%d moved", n)
				}
			})
		})
	}
}

// TestFrozen: a member that is suspended for longer than a TTL loses its partitions, and does
// nothing with them when it is resumed; then it gets a part as any that joins.
func TestFrozen(t *testing.T) {
	for name, coordinates := range map[string]bool{"Member": false, "Coordinator": true} {
		t.Run(name, func(t *testing.T) {
			in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
				p := f.find(coordinates)
				p.net.set(frozen)
				time.Sleep(30 * time.Second)
				after := f.even(3)
				if n, needless := moved(before, after, p.name); n != 10 || needless != 0 {
					t.Errorf("%d moved, %d without need", n, needless)
				}
				p.net.set(up)
				time.Sleep(prompt)
				if n, _ := moved(after, f.even(4)); n != 10 {
					t.Errorf("%d moved when it resumed", n)
				}
			})
		})
	}
}

// TestCoordinatorCut: a coordinator that cannot reach the store is replaced; nothing of the
// others moves, and nothing of it within its leases.
func TestCoordinatorCut(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		p := f.find(true)
		p.net.set(cut)
		time.Sleep(4 * time.Second)
		p.net.set(up)
		time.Sleep(20 * time.Second)
		if n, _ := moved(before, f.even(4)); n != 0 {
			t.Errorf("%d moved for a short cut", n)
		}
		p = f.find(true)
		p.net.set(cut)
		time.Sleep(prompt)
		if n, needless := moved(before, f.even(3), p.name); n != 10 || needless != 0 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
		if p.Coordinates() {
			t.Error("it coordinates still")
		}
	})
}

// TestLatePlan: a plan that a coordinator sent, and that arrives when the next one has written
// others, changes nothing.
func TestLatePlan(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		p, late := f.find(true), make(chan struct{})
		p.net.mu.Lock()
		p.net.late = late
		p.net.mu.Unlock()
		list, _ := f.list(t.Context())
		f.setList(list[:39])
		time.Sleep(3 * time.Second) // it is on its way
		f.setList(list)
		p.net.set(cut)
		time.Sleep(30 * time.Second)
		after := f.even(3)
		version := f.state().Version
		close(late)
		time.Sleep(time.Second)
		if s := f.state(); s.Version != version || s.Partitions[39].Member == "" || s.Coordinator.Member == p.name {
			t.Errorf("version %d, now %d: %+v, %+v", version, s.Version, s.Coordinator, s.Partitions[39])
		}
		if n, needless := moved(before, after, p.name); n != 10 || needless != 0 {
			t.Errorf("%d moved, %d without need", n, needless)
		}
		p.net.set(up)
		time.Sleep(prompt)
		f.even(4)
	})
}

// TestNobodyCoordinates: works go on, for as long as there is no coordinator.
func TestNobodyCoordinates(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		starts := f.starts()
		f.store.Fail(func(ctx context.Context, call string) (bool, error) {
			if call == "acquire" {
				<-ctx.Done()
				return false, locks.ErrUnavailable
			}
			return true, nil
		})
		f.find(true).kill()
		time.Sleep(5 * time.Minute)
		if n := counts(f.owners()); len(n) != 3 || len(f.owners()) != 30 || f.starts() != starts {
			t.Errorf("%v, %d started over", n, f.starts()-starts)
		}
		f.store.Fail(nil)
		time.Sleep(2 * prompt)
		f.even(3)
		if n, needless := moved(before, f.owners()); n != 10 || needless != 10 {
			t.Errorf("%d moved", n)
		}
	})
}

// away sets the outcome of the calls of store and board.
func (f *fleet) away(how func(ctx context.Context, call string) (bool, error)) {
	f.store.Fail(how)
	f.board.Fail(how)
}

// TestStoreAway: while the store is away works go on until their leases end, and when it is
// back all goes on where it was, and nothing moves: it was nobody's death.
func TestStoreAway(t *testing.T) {
	for name, d := range map[string]time.Duration{"Short": 5 * time.Second, "Long": 30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
				starts := f.starts()
				f.away(func(context.Context, string) (bool, error) { return false, errCut })
				time.Sleep(5 * time.Second)
				if n := len(f.owners()); n != 40 || f.starts() != starts {
					t.Errorf("%d go on, %d started over", n, f.starts()-starts)
				}
				time.Sleep(d - 5*time.Second)
				if n := len(f.owners()); (n == 40) != (name == "Short") || n != 40 && n != 0 {
					t.Errorf("%d go on", n)
				}
				f.away(nil)
				time.Sleep(soon)
				if n, _ := moved(before, f.even(4)); n != 0 {
					t.Errorf("%d moved", n)
				}
				time.Sleep(30 * time.Second)
				if n, _ := moved(before, f.even(4)); n != 0 || name == "Short" && f.starts() != starts {
					t.Errorf("%d moved, %d started over", n, f.starts()-starts)
				}
			})
		})
	}
}

// TestBoardAway: while the board alone is away all goes on, and when it is back nobody is taken for
// dead.
func TestBoardAway(t *testing.T) {
	for phase := range 5 { // between a beat and a look
		in(t, 12, 3, func(t *testing.T, f *fleet, before map[string]string) {
			starts := f.starts()
			time.Sleep(time.Duration(phase) * 400 * time.Millisecond)
			f.board.Fail(func(context.Context, string) (bool, error) { return false, errCut })
			time.Sleep(30 * time.Second)
			// The coordinator reads before the members beat.
			f.board.Fail(func(_ context.Context, call string) (bool, error) {
				if call == sharetest.Beat {
					return false, errCut
				}
				return true, nil
			})
			time.Sleep(time.Second)
			f.board.Fail(nil)
			time.Sleep(30 * time.Second)
			if n, _ := moved(before, f.even(3)); n != 0 || f.starts() != starts {
				t.Errorf("%d moved, %d started over", n, f.starts()-starts)
			}
		})
	}
}

// TestStoreHangs: the same, with calls that have no answer.
func TestStoreHangs(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		f.away(func(ctx context.Context, _ string) (bool, error) {
			<-ctx.Done()
			return false, locks.ErrUnavailable
		})
		time.Sleep(30 * time.Second)
		f.away(nil)
		time.Sleep(30 * time.Second)
		if n, _ := moved(before, f.even(4)); n != 0 {
			t.Errorf("%d moved", n)
		}
	})
}

// TestClocks: an election of the store, whose new clock is an hour ahead or slow, makes no
// member dead; and one that dies then is found dead.
func TestClocks(t *testing.T) {
	for name, skew := range map[string]time.Duration{"Ahead": time.Hour, "Back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
				f.store.Elect(skew)
				f.board.Skew(skew)
				time.Sleep(30 * time.Second)
				if n, _ := moved(before, f.even(4)); n != 0 {
					t.Errorf("%d moved", n)
				}
				f.store.Elect(0)
				f.board.Skew(0)
				dead := f.find(false)
				dead.kill()
				// Where the clock went back leases last longer: their end is later by its time.
				time.Sleep(prompt)
				s := must.Get(share.State(t.Context(), f.board, f.store, "g"))(t)
				for _, m := range s.Members {
					if (m.Assigned == 0) != (m.Member == dead.name) {
						t.Errorf("%s died: %+v", dead.name, m)
					}
				}
			})
		})
	}
}

// like returns a member that coordinates, or does not; any if all do not: at times nobody does.
func (f *fleet) like(coordinates bool) (p *process) {
	for _, p = range f.all {
		if p.Coordinates() == coordinates {
			break
		}
	}
	return p
}

// TestLostReplies: of one call in three the reply is lost, of another the call itself. Nothing runs
// twice, and when that ends everything runs.
func TestLostReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 40)
		var mu sync.Mutex
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
		f.away(func(context.Context, string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			switch random.IntN(3) {
			case 0:
				return true, errLost
			case 1:
				return false, errCut
			}
			return true, nil
		})
		f.startAll(4)
		for range 10 {
			time.Sleep(20 * time.Second)
			p := f.like(rand.IntN(2) == 0)
			if p.stop(errKill); rand.IntN(2) == 0 {
				p.net.set(cut)
			}
			<-p.done
			time.Sleep(20 * time.Second)
			f.start(p.name, 0)
		}
		if n := len(f.owners()); n == 0 {
			t.Error("nothing runs")
		}
		f.away(nil)
		time.Sleep(time.Minute)
		before := f.even(4)
		time.Sleep(time.Minute)
		if n, _ := moved(before, f.even(4)); n != 0 {
			t.Errorf("%d moved", n)
		}
	})
}

// TestDeaf: a member whose calls arrive, and which gets no reply, works until its leases end for it,
// and keeps no others from them for ever.
func TestDeaf(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, _ map[string]string) {
		p := f.find(false)
		p.net.set(deaf)
		time.Sleep(time.Minute)
		for partition, m := range f.owners() {
			if m == p.name {
				t.Errorf("it works on %s", partition)
			}
		}
		p.net.set(up)
		time.Sleep(time.Minute)
		f.even(4)
	})
}

// TestWaitsForLease: a partition that its old member does not stop to work on waits, and so
// does nothing else.
func TestWaitsForLease(t *testing.T) {
	in(t, 40, 4, func(t *testing.T, f *fleet, before map[string]string) {
		f.slow(before["p0003"], "p0003", 3*time.Minute)
		f.all[before["p0003"]].stop(errKill)
		time.Sleep(time.Minute)
		s := f.state()
		p := s.Partitions[3]
		if p.Member == before["p0003"] || p.Holder == nil || p.Holder.Member != before["p0003"] || len(f.owners()) != 40 {
			t.Errorf("%+v, has it: %+v", p, p.Holder)
		}
		time.Sleep(3 * time.Minute)
		f.even(3)
	})
}
