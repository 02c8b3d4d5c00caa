package pipeline_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/status"
)

// TestStatusCannotLie plays the files of testdata/truth: something of a steady link freezes,
// and the status has to say so. They run in real time:
//
//	sets                     start two sets of one member
//	link busy|idle [KEY=VALUE ...]   mirror one into the other, until that is steady; the source
//	                         is written to all the time, or not at all
//	shows [but=(FIGURE,...)] [stays=D]   lines, each an act as in testdata/faults; then what the
//	                         status shows, but for figures that depend on the moment
//
// The output of shows is a view of the status: it must become as in the file, and stay
// so. Times are not in it: TestKnownWithinTenSeconds checks them.
func TestStatusCannotLie(t *testing.T) {
	t.Parallel()
	playTruths(t, func(file string) bool { return !strings.HasSuffix(file, "-full") })
}

// TestFullCannotLie plays those of these files that write a hundred megabytes to fill something.
func TestFullCannotLie(t *testing.T) {
	t.Parallel()
	race.Skip(t, "writing a hundred megabytes takes minutes")
	playTruths(t, func(file string) bool { return strings.HasSuffix(file, "-full") })
}

func playTruths(t *testing.T, want func(file string) bool) {
	t.Helper()
	files, err := filepath.Glob("testdata/truth/*")
	files = slices.DeleteFunc(files, func(file string) bool { return !want(file) })
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var all sync.WaitGroup
	starting := make(chan struct{}, 2)
	for _, file := range files {
		// All at once, whatever -parallel says: once their links are steady they only wait. Until
		// then they work, and many at a time would lose their leases on a busy machine.
		all.Go(func() { t.Run(filepath.Base(file), func(t *testing.T) { playTruth(t, file, starting) }) })
	}
	all.Wait()
}

// playTruth plays a file. It has a place in starting until its link is steady.
func playTruth(t *testing.T, file string, starting chan struct{}) {
	starting <- struct{}{}
	leave := sync.OnceFunc(func() { <-starting })
	defer leave()
	var w *world
	var show *shown
	defer func() {
		if w != nil {
			w.disk.set(false)
		}
	}()
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "sets":
			exact := mongosim.GentleMoods("a file has the trace of its own faults")
			w = newWorld(t, setOptions(t, d, "source", 1, exact), setOptions(t, d, "target", 2, exact))
			return ""
		case "link":
			show = w.showing(d)
			leave()
			return ""
		case "do":
			return w.do(d)
		case "shows":
			w.acts(d)
			return show.until(d)
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

// shown is what the status of link a shows.
type shown struct {
	w       *world
	tracker *status.Tracker
}

// sample is a status shown at a time.
type sample struct {
	at time.Time
	s  status.Snapshot
}

// showing starts link a with the settings of the program, and its status.
func (w *world) showing(d *datadriven.TestData) *shown {
	t := w.t
	args := []string{"lease=10s", "await=5s"}
	for _, arg := range d.CmdArgs[1:] {
		args = append(args, arg.String())
	}
	w.registry = prometheus.NewRegistry()
	tracker := must.Get(status.New(status.Config{
		Link: "mirror", Registry: w.registry, TargetPrimary: w.target.conn.Primary,
		Source: connect(t, w.source.Set, theProgram), Target: connect(t, w.target.Set, theProgram),
	}))(t)
	w.observe = tracker.Observe
	must.Succeed(t, w.source.write(t.Context(), "shop", statements("insert", "a", 1, 100, 0)))
	must.Succeed(t, w.configure("a", args))
	tracker.Follow(w.links["a"].p.Snapshot)
	var along sync.WaitGroup
	ctx, end := context.WithCancelCause(t.Context())
	along.Go(func() { _ = tracker.Run(ctx) })
	t.Cleanup(func() { end(nil); along.Wait() })
	var s status.Snapshot
	steady := func(seconds int) {
		t.Helper()
		if err := w.until("a steady link that does not use the spool of its copy", func() bool {
			s = tracker.Snapshot()
			return s.Verdict.Name == "steady" && (s.Spool == nil || s.Spool.KeepsUp) && s.ExactAt != nil && s.At.Sub(s.Since) >= time.Duration(seconds)*time.Second
		}); err != nil {
			t.Fatalf("%v: %+v", err, s.Verdict)
		}
	}
	steady(0)
	if d.CmdArgs[0].Key == "busy" {
		along.Go(func() { w.writeAlways(ctx) })
	}
	steady(2)
	return &shown{w: w, tracker: tracker}
}

// writeAlways writes to the source's member until ctx is done, whatever links are cut.
func (w *world) writeAlways(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 1000; ; i++ {
		if _, err := w.source.on(ctx, 0, "shop", statements("insert", "busy", i, i, 0)); err != nil && ctx.Err() == nil {
			w.t.Errorf("write to the source: %v", err)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

const (
	// lookEvery is the time between two samples.
	lookEvery = 250 * time.Millisecond
	// compareWith is the age of the sample that one is compared with: an idle source answers
	// every five seconds.
	compareWith = 6 * time.Second
)

// until waits until the view is what the file says, and requires it to stay that.
func (v *shown) until(d *datadriven.TestData) string {
	stays := 5 * time.Second
	if d.HasArg("stays") {
		var text string
		d.ScanArgs(v.w.t, "stays", &text)
		stays = must.Get(time.ParseDuration(text))(v.w.t)
	}
	var but []string
	for _, arg := range d.CmdArgs {
		if arg.Key == "but" {
			but = arg.Vals
		}
	}
	began := time.Now()
	var samples []sample
	var since time.Time // of the last view that is as expected
	var other, last string
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		samples = append(samples, v.look())
		now := &samples[len(samples)-1]
		before := &samples[0]
		for i := range samples {
			if now.at.Sub(samples[i].at) >= compareWith {
				before = &samples[i]
			}
		}
		got := "too early"
		if now.at.Sub(before.at) >= compareWith {
			got = now.view(before, but)
		}
		if n := len(samples); got != last {
			last = got
			v.w.t.Logf("%s: %d samples, %s:\n%s%s", d.Pos, n, now.at.Sub(began).Round(time.Millisecond), got, now.s.Verdict.Sentence)
		}
		switch {
		case since.IsZero() && got != d.Expected:
			other = got
		case since.IsZero():
			since = now.at
			v.w.t.Logf("%s: right after %s: %s", d.Pos, since.Sub(began).Round(time.Millisecond), now.s.Verdict.Sentence)
		case calm(got) != calm(d.Expected):
			return got + "(not for long; it was " + d.Expected + ")"
		case now.at.Sub(since) >= stays:
			return d.Expected
		}
		switch {
		case since.IsZero() && now.at.Sub(began) > patience:
			return other
		case !since.IsZero() && stays == 0:
			return got
		}
		select {
		case <-look.C:
		case <-v.w.t.Context().Done():
			return other
		}
	}
}

func (v *shown) look() sample {
	return sample{time.Now(), v.tracker.Snapshot()}
}

// calm is a view in which a figure that grows may stand for a while: on a busy machine the source's
// replies are late.
func calm(view string) string { return strings.ReplaceAll(view, " stands\n", " grows\n") }

// view is what a user sees now, and how it has changed.
func (s *sample) view(before *sample, but []string) string {
	passed := s.at.Sub(before.at).Seconds()
	exact := "unknown"
	switch at, was := s.s.ExactAt, before.s.ExactAt; {
	case at == nil:
	case was != nil && at.Sub(*was) < 2*time.Second:
		exact = "stands"
	default:
		exact = "advances"
	}
	var out strings.Builder
	for _, figure := range []struct{ name, value string }{
		{"good", strconv.FormatBool(s.s.Verdict.Level == status.Good)},
		{"level", string(s.s.Verdict.Level)},
		{"verdict", s.s.Verdict.Name},
		{"healthy", strconv.FormatBool(s.s.Healthy())},
		{"state", s.s.State},
		{"lag", trend(before.s.LagSeconds, s.s.LagSeconds, passed)},
		{"unapplied", trend(before.s.AgeOfOldestUnappliedSeconds, s.s.AgeOfOldestUnappliedSeconds, passed)},
		{"exact", exact},
		{"latency", latency(s.s.Latency.P99Seconds)},
		{"operations", rate(s.s.Applier.OpsPerSecond)},
	} {
		if figure.name == "good" && !slices.Contains(but, "level") {
			continue // the level says it
		}
		if !slices.Contains(but, figure.name) {
			_, _ = fmt.Fprintf(&out, "%s %s\n", figure.name, figure.value)
		}
	}
	return out.String()
}

// trend is how a figure changes. A large figure that stands still grows, too; a small one that becomes larger rises.
func trend(before, now *float64, passed float64) string {
	switch {
	case now == nil:
		return "unknown"
	case before != nil && *now-*before > passed/2 && *now < 8:
		return "rises"
	case before != nil && *now-*before > passed/2:
		return "grows"
	case *now < 8:
		return "small"
	default:
		return "stands"
	}
}

func latency(p99 *float64) string {
	if p99 == nil {
		return "unknown"
	}
	return "known"
}

func rate(perSecond *float64) string {
	switch {
	case perSecond == nil:
		return "unknown"
	case *perSecond == 0:
		return "none"
	default:
		return "some"
	}
}
