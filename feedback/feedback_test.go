package feedback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestScenarios runs the scenarios of testdata/when: input events, one per line,
// and the reports with their times.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/when", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out string
			synctest.Test(t, func(t *testing.T) { out = scenario(t, d) })
			return out
		})
	})
}

// scenario runs one scenario: its lines are TIME WHAT ARGUMENTS.
func scenario(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(&out, "%v %s\n", time.Since(began), fmt.Sprintf(format, args...))
	}
	s := &source{up: Source{Host: "h1", Committed: ot(1_000_000), CommittedWall: 1, ConfigVersion: 1}}
	s.note = func(r told) { say("told applied=%d durable=%d", r.applied.TS.T, r.durable.TS.T) }
	cfg := Config{MemberID: 7, Upstream: s, Primary: s, Link: "a", Observer: func(e event.Event) {
		say("event: %s %s", e.Message(), e.LogValue())
	}}
	var gaps checkpoint.Gaps
	cfg.Mode = map[string]Mode{"member": Member, "document": Document, "none": None}[d.Cmd]
	for _, arg := range d.CmdArgs {
		n := must.Get(time.ParseDuration(arg.Vals[0]))(t)
		switch arg.Key {
		case "consistent":
			gaps.CopiedUntil = ot(uint32(n / time.Second))
		case "latency":
			s.latency = n
		case "keep-alive":
			cfg.KeepAlive = n
		}
	}
	f := must.Get(New(cfg))(t)
	in := make(chan checkpoint.Progress)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		say("ended: %v", f.Run(ctx, in))
	}()
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		time.Sleep(time.Until(began.Add(must.Get(time.ParseDuration(words[0]))(t))))
		synctest.Wait()
		number := func(i int) uint32 { return uint32(must.Get(strconv.ParseUint(words[i], 10, 32))(t)) }
		switch words[1] {
		case "progress": // APPLIED DURABLE OPS
			in <- gaps.Reached(progress(number(2), number(3), int64(number(4))))
		case "source": // HOST COMMITTED
			s.set(func(s *source) {
				s.up.Host, s.up.Committed, s.up.CommittedWall = words[2], ot(number(3)), int64(number(3))*1000
			})
		case "config": // VERSION
			s.set(func(s *source) { s.up.ConfigVersion = int64(number(2)) })
		case "gone":
			s.set(func(s *source) { s.down = true })
		case "latency":
			s.set(func(s *source) { s.latency = must.Get(time.ParseDuration(words[2]))(t) })
		case "error": // CODE, or "lost" or "none"
			s.set(func(s *source) {
				switch words[2] {
				case "none":
					s.err = nil
				case "lost":
					s.err = &mongo.LostError{Host: "h1", Err: errors.New("gone")}
				default:
					s.err = servererr.New(servererr.Code(number(2)), "no")
				}
			})
		case "close":
			close(in)
		case "stop":
			cancel(errors.New("stopped"))
		case "wait":
		default:
			t.Fatalf("unknown line %q", line)
		}
		synctest.Wait()
	}
	cancel(errors.New("end of the scenario"))
	<-ended
	if s.most > 1 {
		t.Errorf("%d reports in flight at once", s.most)
	}
	return out.String()
}

// TestTold: under any schedule, reports never go back, do not exceed the target or
// the receiving member's commit point, and have a wall time.
func TestTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		mode := rapid.SampledFrom([]Mode{Member, Document}).Draw(rt, "mode")
		consistent := rapid.Uint32Range(0, 8).Draw(rt, "consistent")
		gaps := checkpoint.Gaps{CopiedUntil: ot(consistent)}
		type step struct {
			p       checkpoint.Progress
			commit  uint32
			wall    int64
			down    bool
			fails   error
			latency time.Duration
			wait    time.Duration
		}
		small := rapid.Uint32Range(0, 30)
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			s := step{p: progress(small.Draw(rt, "applied"), small.Draw(rt, "durable"), rapid.Int64Range(0, 3).Draw(rt, "ops"))}
			if rapid.IntRange(0, 5).Draw(rt, "no wall") == 0 {
				s.p.AppliedWall, s.p.DurableWall = 0, 0
			}
			s.commit = small.Draw(rt, "commit")
			s.wall = int64(rapid.IntRange(0, 1).Draw(rt, "commit wall")) * int64(s.commit) * 1000
			s.down = rapid.IntRange(0, 5).Draw(rt, "down") == 0
			s.fails = rapid.SampledFrom([]error{nil, nil, nil, &mongo.LostError{Err: errors.New("x")}, servererr.New(servererr.NodeNotFound, "x")}).Draw(rt, "fails")
			s.latency = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Minute}).Draw(rt, "latency")
			s.wait = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, 11 * time.Second}).Draw(rt, "wait")
			return s
		}), 1, 30).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			s := &source{down: true}
			var most uint32 // applied so far
			var last told
			s.note = func(r told) {
				s.mu.Lock()
				commit := s.up.Committed
				s.mu.Unlock()
				switch {
				case r.applied.Before(last.applied) || r.durable.Before(last.durable) && !last.durable.IsNull():
					rt.Errorf("%+v after %+v", r, last)
				case r.durable.After(r.applied) && !r.durable.IsNull():
					rt.Errorf("durable beyond applied: %+v", r)
				case !r.applied.IsNull() && r.appliedWall <= 0 || !r.durable.IsNull() && r.durableWall <= 0:
					rt.Errorf("an optime without a time: %+v", r)
				case r.applied.IsNull():
					rt.Errorf("a report of nothing: %+v", r)
				case r.applied.TS.T > most:
					rt.Errorf("beyond what was applied, %d: %+v", most, r)
				case mode == Member && r.applied.After(commit):
					rt.Errorf("beyond the commit point %s: %+v", commit, r)
				case mode == Member && r.member != 7:
					rt.Errorf("for another member: %+v", r)
				}
				last = r
			}
			f := must.Get(New(Config{Mode: mode, MemberID: 7, Upstream: s, Primary: s, Link: "a"}))(t)
			in := make(chan checkpoint.Progress)
			ended := make(chan error, 1)
			go func() { ended <- f.Run(t.Context(), in) }()
			for _, st := range steps {
				// Nothing is reported while the source changes.
				synctest.Wait()
				s.set(func(s *source) {
					s.up.Committed, s.up.CommittedWall = ot(st.commit), st.wall
					s.down, s.err, s.latency = st.down, st.fails, st.latency
				})
				most = max(most, st.p.Applied.TS.T)
				in <- gaps.Reached(st.p)
				time.Sleep(st.wait)
			}
			close(in)
			if err := <-ended; err != nil {
				rt.Errorf("a drained Run returned %v", err)
			}
			if most < consistent && len(s.reports) > 0 {
				rt.Errorf("reported before the target was consistent: %+v", s.reports)
			}
			if s.most > 1 {
				rt.Errorf("%d in flight at once", s.most)
			}
		})
	})
}

// TestToldToOneBehind: a member with a commit point before the last report gets no
// report, not even a keep-alive, until it has caught up.
func TestToldToOneBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &source{up: Source{Host: "h", Committed: ot(100), CommittedWall: 100_000}}
		f := must.Get(New(Config{Mode: Member, MemberID: 7, Upstream: s}))(t)
		in := make(chan checkpoint.Progress)
		ended := make(chan error, 1)
		go func() { ended <- f.Run(t.Context(), in) }()
		in <- progress(10, 9, 1)
		time.Sleep(time.Second)
		s.set(func(s *source) {
			s.up = Source{Host: "other", Committed: ot(5), CommittedWall: 5_000}
			s.reports = nil
		})
		in <- progress(11, 9, 2)
		time.Sleep(time.Hour)
		s.set(func(s *source) {
			if len(s.reports) > 0 {
				t.Errorf("told to one that knows %s: %+v", s.up.Committed, s.reports)
			}
			s.up.Committed, s.up.CommittedWall = ot(50), 50_000
		})
		time.Sleep(time.Hour)
		s.set(func(s *source) {
			if len(s.reports) == 0 || s.reports[0].applied != ot(11) {
				t.Errorf("told %+v", s.reports)
			}
		})
		close(in)
		must.Succeed(t, <-ended)
	})
}

// TestRunAgain: a second Run never reports less than the first.
func TestRunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &source{up: Source{Host: "h", Committed: ot(100), CommittedWall: 100_000}}
		f := must.Get(New(Config{Mode: Member, MemberID: 7, Upstream: s}))(t)
		for _, p := range []checkpoint.Progress{progress(10, 9, 1), progress(8, 7, 1), progress(11, 3, 2)} {
			in := make(chan checkpoint.Progress, 1)
			in <- p
			close(in)
			must.Succeed(t, f.Run(t.Context(), in))
		}
		var applied []uint32
		for _, r := range s.reports {
			applied = append(applied, r.applied.TS.T, r.durable.TS.T)
		}
		if want := []uint32{10, 9, 11, 9}; !slices.Equal(applied, want) {
			t.Errorf("told %v, want %v", applied, want)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	s := &source{}
	for what, cfg := range map[string]Config{
		"no member":        {Mode: Member},
		"member id -1":     {Mode: Member, Upstream: s, MemberID: -1},
		"no primary":       {Mode: Document, Link: "a"},
		"no name":          {Mode: Document, Primary: s},
		"Mode(9)":          {Mode: 9},
		"keep-alive of -1": {KeepAlive: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v, want %q", cfg, err, what)
		}
	}
}

// TestNullDurable: while nothing is durable, the null optime and the epoch are
// reported for durable, the only field in which they are allowed.
func TestNullDurable(t *testing.T) {
	t.Parallel()
	r, _ := report{}.of(checkpoint.Progress{Applied: ot(5), AppliedWall: 5}, nil)
	got := must.Get(read(positionCommand(7, 1, r)))(t)
	want := told{applied: ot(5), appliedWall: 5, durable: oplog.OpTime{Term: oplog.UninitializedTerm}, member: 7}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
