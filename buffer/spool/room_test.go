package spool

import (
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestFull: there is no room by the limit, on the disk, and in the middle of a
// write.
func TestFull(t *testing.T) {
	type setup struct {
		s *Spool
		d *hardware
		r *running
	}
	for name, tt := range map[string]struct {
		why   string
		full  func(setup)
		empty func(setup)
	}{
		"limit": {
			"the limit of 10000 bytes is reached",
			func(x setup) { x.r.offer(reply(t, 8000, 4)) },
			func(x setup) { _ = x.s.Forget(at(4)) },
		},
		"free": {
			"less than 1 GiB of the disk would be free",
			func(x setup) { x.d.set(gib+500, -1); x.r.offer(reply(t, 600, 4)) },
			func(x setup) { x.d.set(gib+5000, -1); time.Sleep(time.Second) },
		},
		"write": {
			"no space left on device",
			func(x setup) { x.d.set(1<<50, 500); x.r.offer(reply(t, 600, 4)) },
			func(x setup) { x.d.set(1<<50, -1); time.Sleep(time.Second) },
		},
		"new file": {
			"no space left on device",
			func(x setup) { x.d.set(1<<50, 20); x.r.offer(reply(t, 8000, 4)) },
			func(x setup) { x.d.set(1<<50, -1); _ = x.s.Forget(at(4)); time.Sleep(time.Second) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l eventLog
				reg := prometheus.NewRegistry()
				x := setup{d: newHardware()}
				var err error
				x.s, err = open(Config{
					Dir: t.TempDir(), ID: "x", Limit: 10_000, SegmentBytes: 5000, Observer: l.observe, Registry: reg,
				}, x.d.disk(syscall.ENOSPC))
				if err != nil {
					t.Fatal(err)
				}
				x.r = startRun(t.Context(), t, x.s)
				for n := 1; n <= 3; n++ {
					want(t, "there is room", x.r.offer(reply(t, 1000, n)), true)
					want(t, "handed on", x.r.takeNumbers(), []int{n})
				}
				want(t, "events", l.take(), nil)
				tt.full(x)
				synctest.Wait()
				want(t, "no room", x.r.offer(reply(t, 0, 5)), false)
				want(t, "nothing handed on", x.r.takeNumbers(), nil)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				want(t, "said once", l.take(), []string{"spool full, reading the oplog paused"})
				st := x.s.Disk()
				if !st.Full || !strings.Contains(st.Why, tt.why) {
					t.Errorf("%+v", st)
				}
				tt.empty(x)
				synctest.Wait()
				want(t, "handed on", x.r.takeNumbers(), []int{4})
				want(t, "room", l.take(), []string{"spool has room again"})
				want(t, "room", x.r.offer(reply(t, 0, 5)), true)
				want(t, "handed on", x.r.takeNumbers(), []int{5})
				want(t, "state", x.s.Disk().Why, "")
				if n := metricValue(t, reg, "replicator_spool_full_seconds_total"); n < 10 || n > 12 {
					t.Errorf("full for %v s", n)
				}
				close(x.r.in)
				want(t, "the end", <-x.r.done, nil)
				got, err := drain(t, x.s)
				want(t, "again", err, nil)
				list := allNumbers(got)
				want(t, "read back", list, sequence(list[0], 5))
				want(t, "closed", x.s.Close(), nil)
				again, err := open(x.s.cfg, x.d.disk(nil))
				if err != nil {
					t.Fatal(err)
				}
				want(t, "nothing is left of what did not fit", again.Disk().Bytes, x.s.Disk().Bytes)
				l.take()
				want(t, "closed", again.Close(), nil)
			})
		})
	}
}

// TestLarge: a reply larger than the limit passes alone.
func TestLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l eventLog
		s := mustOpen(t, Config{Dir: t.TempDir(), Limit: 2000, Observer: l.observe})
		r := startRun(t.Context(), t, s)
		for n := 1; n <= 5; n++ {
			want(t, "taken", r.offer(reply(t, 5000, n)), true)
			time.Sleep(2 * time.Second)
			want(t, "handed on", r.takeNumbers(), []int{n})
			_ = s.Forget(at(n))
			time.Sleep(2 * time.Second)
		}
		close(r.in)
		want(t, "the end", <-r.done, nil)
	})
}
