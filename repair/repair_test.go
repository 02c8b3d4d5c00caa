package repair

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/request"
)

// TestRepaired: documents go in groups, each _id once, and the request is done once they are found the
// same at a later cut, which is noted.
func TestRepaired(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source, w.target = docs(0, 250, "s"), docs(0, 200, "t")
		args, sizes := of(0, 250), []int(nil)
		args.IDs = append(args.IDs, args.IDs[:5]...)
		state, outcome, _ := w.run(t, args, func(_ int, r *applier.Repair) (applier.Repaired, bool) {
			sizes = append(sizes, len(r.IDs))
			return applier.Repaired{}, false
		})
		if state != request.Done || !strings.Contains(outcome, "250 documents rewritten") || !strings.Contains(outcome, "the same as the source's at a cut") {
			t.Errorf("%s: %s", state, outcome)
		}
		if !slices.Equal(sizes, []int{groupDocs, groupDocs, 50}) || len(w.proved) != 250 || w.cuts == 0 {
			t.Errorf("groups of %v, %d noted, %d cuts", sizes, len(w.proved), w.cuts)
		}
	})
}

// TestRange: a range has the documents of both sides. Those that are deleted are noted as each type of number.
func TestRange(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source, w.target, w.unproved = docs(0, 5, "s"), docs(3, 9, "t"), errors.New("planted")
		ids := of(2, 8).IDs
		state, outcome, _ := w.run(t, request.RepairArgs{Namespace: "d.a", From: ids[0], To: ids[5]}, asIs)
		if state != request.Done || len(w.target) != 4 || len(w.proved) != 3+3*3 || !strings.Contains(outcome, "remain until the next verification: planted") {
			t.Errorf("%s: %s; %v", state, outcome, w.target)
		}
	})
}

// TestRefusedRequests: what can be no repair is refused, and nothing is written.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	ids := of(1, 2).IDs
	for name, tt := range map[string]struct {
		args request.RepairArgs
		set  func(*world)
		want string
	}{
		"not mirrored":   {args: request.RepairArgs{Namespace: "x.a", IDs: ids}, want: "does not mirror"},
		"another name":   {args: request.RepairArgs{Namespace: "d.a", Target: "d.a", IDs: ids}, want: "the report is of another link"},
		"no such _id":    {args: request.RepairArgs{Namespace: "d.a", IDs: [][]byte{{1}}}, want: "base64"},
		"no such range":  {args: request.RepairArgs{Namespace: "d.a", From: ids[0]}, want: "to:"},
		"an empty range": {args: request.RepairArgs{Namespace: "d.a", From: ids[0], To: ids[0]}, want: "neither side"},
		"a large range": {args: request.RepairArgs{Namespace: "d.a", From: of(0, 1).IDs[0], To: of(mostInRange, mostInRange+1).IDs[0]}, set: func(w *world) {
			w.source = docs(0, mostInRange+1, "")
		}, want: "more than 20000"},
		"no collection": {args: of(1, 2), set: func(w *world) { w.uuid = 0 }, want: "does not have the collection"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T) {
				w := newWorld(nil)
				if tt.set != nil {
					tt.set(w)
				}
				state, outcome, _ := w.run(t, tt.args, func(int, *applier.Repair) (applier.Repaired, bool) {
					t.Error("a group is handed out")
					return applier.Repaired{}, true
				})
				if state != request.Refused || !strings.Contains(outcome, tt.want) {
					t.Errorf("%s: %s, want %s", state, outcome, tt.want)
				}
			})
		})
	}
}

// TestUnable: a source that cannot be read as of an earlier time, and a collection that cannot be written,
// end the request at once.
func TestUnable(t *testing.T) {
	t.Parallel()
	for name, each := range map[string]func(w *world) func(int, *applier.Repair) (applier.Repaired, bool){
		"as of an earlier time": func(w *world) func(int, *applier.Repair) (applier.Repaired, bool) {
			w.fail = func(side, name string) error {
				if side == "source" && name == "find" {
					return servererr.New(servererr.InvalidOptions, "planted")
				}
				return nil
			}
			return asIs
		},
		"it is capped": func(*world) func(int, *applier.Repair) (applier.Repaired, bool) {
			return func(int, *applier.Repair) (applier.Repaired, bool) {
				return applier.Repaired{State: applier.RepairImpossible, Why: "it is capped"}, true
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T) {
				w := newWorld(nil)
				if state, outcome, took := w.run(t, of(0, 3), each(w)); state != request.Refused || !strings.Contains(outcome, name) || took > time.Minute {
					t.Errorf("%s after %s: %s", state, took, outcome)
				}
			})
		})
	}
}

// TestUnableInTheMiddle: a repair that becomes impossible after documents were written has failed, and was not refused.
func TestUnableInTheMiddle(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source = docs(0, 2*groupDocs, "s")
		state, outcome, _ := w.run(t, of(0, 2*groupDocs), func(n int, _ *applier.Repair) (applier.Repaired, bool) {
			return applier.Repaired{State: applier.RepairImpossible, Why: "it is capped"}, n > 0
		})
		if state != request.Failed || !strings.Contains(outcome, "it is capped") {
			t.Errorf("%s: %s", state, outcome)
		}
	})
}

// TestSmaller: a group that is too much is halved; a document that is refused alone is tried once more
// after all others, and the outcome names it if it still differs. The others are noted.
func TestSmaller(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source, w.target = docs(0, 10, "s"), docs(0, 10, "t")
		var alone int
		state, outcome, _ := w.run(t, of(0, 10), func(_ int, r *applier.Repair) (applier.Repaired, bool) {
			switch {
			case len(r.IDs) > 2:
				return applier.Repaired{State: applier.RepairSmaller, Why: "too much"}, true
			case len(r.IDs) == 2 && r.IDs[1].AsInt64() == 7 || r.IDs[0].AsInt64() == 7 && len(r.IDs) == 2:
				return applier.Repaired{State: applier.RepairSmaller, Why: "one is refused"}, true
			case r.IDs[0].AsInt64() == 7:
				alone++
				return applier.Repaired{State: applier.RepairRefused, Why: "dup key"}, true
			}
			return applier.Repaired{}, false
		})
		if state != request.Failed || !strings.HasPrefix(outcome, request.StillDiffers+": 1 documents of td.a, _id 7") || !strings.Contains(outcome, "dup key") {
			t.Errorf("%s: %s", state, outcome)
		}
		if alone != 2 || len(w.proved) != 9 {
			t.Errorf("tried alone %d times, %d noted", alone, len(w.proved))
		}
	})
}

// TestPatience: a group that cannot be written is tried again with growing pauses, for ten minutes. The
// time for which the link is paused, or by which it is delayed, does not count.
func TestPatience(t *testing.T) {
	t.Parallel()
	later := func(int, *applier.Repair) (applier.Repaired, bool) {
		return applier.Repaired{Why: "not now"}, true
	}
	t.Run("never", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w, n := newWorld(nil), 0
			state, outcome, took := w.run(t, of(0, 1), func(int, *applier.Repair) (applier.Repaired, bool) { n++; return later(0, nil) })
			if state != request.Failed || !strings.Contains(outcome, "within 10m0s: not now") || took < 10*time.Minute || took > 11*time.Minute || n > 200 {
				t.Errorf("%s after %s, tried %d times: %s", state, took, n, outcome)
			}
		})
	})
	t.Run("paused while it is offered", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(nil)
			w.source = docs(0, 1, "s")
			state, outcome, took := w.run(t, of(0, 1), func(n int, _ *applier.Repair) (applier.Repaired, bool) {
				if n > 0 {
					return applier.Repaired{}, false
				}
				w.with(func() { w.held = true })
				time.Sleep(time.Hour)
				w.with(func() { w.held = false })
				return later(0, nil)
			})
			if state != request.Done || took < time.Hour {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	t.Run("paused before a cut", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(nil)
			w.source, w.noCuts = docs(0, 1, "s"), true
			go func() {
				time.Sleep(5 * time.Minute)
				w.with(func() { w.held = true })
				time.Sleep(time.Hour)
				w.with(func() { w.held, w.noCuts = false, false })
			}()
			if state, outcome, took := w.run(t, of(0, 1), asIs); state != request.Done || took < time.Hour {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	t.Run("no cut", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(nil)
			w.source, w.noCuts = docs(0, 1, "s"), true
			state, outcome, took := w.run(t, of(0, 1), asIs)
			if state != request.Failed || !strings.Contains(outcome, "no later cut was made within 10m0s to compare them: planted") || took > 11*time.Minute || len(w.proved) > 0 {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	for _, away := range []struct{ side, name string }{{"source", "find"}, {"target", "find"}, {"source", "listCollections"}, {"target", "listCollections"}} {
		t.Run("a failover of the "+away.side+" before "+away.name, func(t *testing.T) {
			scenario(t, func(t *testing.T) {
				w := newWorld(nil)
				w.source = docs(0, 1, "s")
				var until time.Time
				w.fail = func(side, name string) error {
					if side == away.side && name == away.name && time.Now().Before(until) {
						return servererr.New(servererr.PrimarySteppedDown, "planted")
					}
					return nil
				}
				state, outcome, took := w.run(t, of(0, 1), func(_ int, r *applier.Repair) (applier.Repaired, bool) {
					out := w.write(t.Context(), r)
					w.with(func() { until = time.Now().Add(30 * time.Second) })
					return out, true
				})
				if state != request.Done || took < 30*time.Second || took > time.Minute {
					t.Errorf("%s after %s: %s", state, took, outcome)
				}
			})
		})
	}
	t.Run("a server that is away while documents are compared", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w, written := newWorld(nil), false
			w.source = docs(0, 1, "s")
			w.fail = func(side, name string) error {
				if side == "target" && name == "find" && written {
					return servererr.New(servererr.PrimarySteppedDown, "planted")
				}
				return nil
			}
			state, outcome, took := w.run(t, of(0, 1), func(_ int, r *applier.Repair) (applier.Repaired, bool) {
				out := w.write(t.Context(), r)
				w.with(func() { written = true })
				return out, true
			})
			if state != request.Failed || !strings.Contains(outcome, "could not be compared at a later cut") || took < 10*time.Minute || took > 11*time.Minute {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	t.Run("delayed", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(func(c *Config) { c.Delay = time.Hour })
			w.source = docs(0, 1, "s")
			state, outcome, took := w.run(t, of(0, 1), func(n int, _ *applier.Repair) (applier.Repaired, bool) {
				time.Sleep(time.Hour)
				return applier.Repaired{Why: "a failover"}, n == 0
			})
			if state != request.Done || took < 2*time.Hour {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	t.Run("delayed too long", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(func(c *Config) { c.Delay = time.Hour })
			w.fail = func(side, name string) error {
				if side == "source" && name == "find" {
					return servererr.New(servererr.SnapshotTooOld, "planted")
				}
				return nil
			}
			state, outcome, took := w.run(t, of(0, 1), func(int, *applier.Repair) (applier.Repaired, bool) {
				time.Sleep(time.Hour)
				return applier.Repaired{}, false
			})
			if state != request.Failed || !strings.Contains(outcome, "raise minSnapshotHistoryWindowInSeconds") || took > 3*time.Hour {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
	t.Run("busy", func(t *testing.T) {
		scenario(t, func(t *testing.T) {
			w := newWorld(nil)
			w.busy = 1 << 30
			if state, outcome, took := w.run(t, of(0, 1), asIs); state != request.Failed || !strings.Contains(outcome, "was not free within 10m0s") || took > 11*time.Minute {
				t.Errorf("%s after %s: %s", state, took, outcome)
			}
		})
	})
}

// TestIdle: after a group for which lanes were idle it pauses ten times as long, whatever its outcome.
func TestIdle(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source = docs(0, 1, "s")
		var at []time.Time
		w.run(t, of(0, 1), func(n int, _ *applier.Repair) (applier.Repaired, bool) {
			at = append(at, time.Now())
			if n > 0 {
				return applier.Repaired{}, false
			}
			return applier.Repaired{Why: "refused", Idle: time.Second}, true
		})
		if len(at) != 2 || at[1].Sub(at[0]) < idleShare*time.Second/2 { // pauses are random, half as long at least
			t.Errorf("groups at %v", at)
		}
	})
}

// TestMadeAgain: a collection that is another one when its documents were read is tried again; at the
// comparison, too.
func TestMadeAgain(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w, n := newWorld(nil), 0
		w.source = docs(0, 1, "s")
		w.fail = func(side, name string) error {
			if n++; side == "source" && name == "find" && n < 12 {
				w.uuid++
			}
			return nil
		}
		if state, outcome, _ := w.run(t, of(0, 1), asIs); state != request.Done || w.uuid < 3 {
			t.Errorf("%s: %s; uuid %d", state, outcome, w.uuid)
		}
	})
}

// TestStillDiffers: documents that differ at the later cut are reported, and not recorded as equal.
func TestStillDiffers(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source, w.target = docs(0, 3, "s"), docs(0, 2, "t")
		state, outcome, _ := w.run(t, of(0, 3), func(int, *applier.Repair) (applier.Repaired, bool) { // a failover takes it back
			return applier.Repaired{State: applier.RepairDone, Source: optime(100), Target: bson.Timestamp{T: 100}}, true
		})
		if state != request.Failed || !strings.HasPrefix(outcome, request.StillDiffers+": 3 documents") || len(w.proved) > 0 {
			t.Errorf("%s: %s; noted %v", state, outcome, w.proved)
		}
	})
}

// TestNextLeader: a repair that has not ended when the leadership does is forgotten, and its lock given
// back; the next leader begins it again.
func TestNextLeader(t *testing.T) {
	scenario(t, func(t *testing.T) {
		w := newWorld(nil)
		w.source = docs(0, 1, "s")
		ctx, stop := context.WithCancelCause(t.Context())
		var one sync.WaitGroup
		one.Go(func() { w.Run(ctx) })
		w.Leads(6)
		w.Follow(6, "r", of(0, 1), "")
		time.Sleep(time.Hour) // no attempt takes the group
		if state, _ := w.Follow(6, "r", of(0, 1), ""); state != request.Working {
			t.Errorf("%s while no attempt takes it", state)
		}
		stop(nil)
		one.Wait()
		w.with(func() {
			if len(w.locked) > 0 {
				t.Errorf("locked: %v", w.locked)
			}
			w.kept = nil
		})
		if state, outcome, _ := w.run(t, of(0, 1), asIs); state != request.Done {
			t.Errorf("%s: %s", state, outcome)
		}
	})
}
