package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
)

// screen shows progress. Write errors are ignored: the result is returned too.
type screen struct {
	out     io.Writer
	inPlace bool

	mu sync.Mutex // guards the rest, and out
	// open is true if the next line replaces the last one.
	open bool
	// told is when progress was last shown.
	told time.Time
}

// columns is the width to which a line of progress is cut.
const columns = 100

// wipeLine clears the open line.
const wipeLine = "\r\x1b[K"

// line writes lines that stay.
func (s *screen) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
}

// progress writes a line that the next one replaces; if that is not possible, it
// writes one each second.
func (s *screen) progress(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inPlace {
		if time.Since(s.told) >= time.Second {
			s.told = time.Now()
			_, _ = fmt.Fprintln(s.out, text)
		}
		return
	}
	if len(text) > columns {
		text = text[:columns]
	}
	_, _ = io.WriteString(s.out, wipeLine+text)
	s.open = true
}

func (s *screen) wipe() {
	if s.open {
		_, _ = io.WriteString(s.out, wipeLine)
		s.open = false
	}
}

// end restores the screen.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
}

// showEvery is how often progress is shown and the lag is taken.
const showEvery = 100 * time.Millisecond

// showLoop shows progress, and collects how large the lag is, until ctx is done.
func (d *Demo) showLoop(ctx context.Context) {
	began := time.Now()
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	var lags []float64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			d.result.addLags(lags)
			return
		}
		if p := d.pipeline.Snapshot(); p.Copy != nil && p.Copy.Progress != nil {
			c := p.Copy.Progress
			d.result.Copied = max(d.result.Copied, c.Docs)
			d.screen.progress(fmt.Sprintf("%4.1f s  %-12s  %s: %s of %s documents, %.1f MiB/s",
				time.Since(began).Seconds(), p.State, c.Step, grouped(c.Docs), grouped(c.TotalDocs), c.BytesPerSecond/(1<<20)))
			continue
		}
		s := d.tracker.Snapshot()
		lag := "unknown"
		if s.LagSeconds != nil {
			lags = append(lags, *s.LagSeconds)
			lag = strconv.FormatFloat(*s.LagSeconds, 'f', 3, 64) + " s"
		}
		perSecond := 0.0
		if s.Applier.OpsPerSecond != nil {
			perSecond = *s.Applier.OpsPerSecond
		}
		text := fmt.Sprintf("%4.1f s  %-12s  %s operations, %s/s, lag %s",
			time.Since(began).Seconds(), s.State, grouped(s.Applier.OpsApplied), grouped(int64(perSecond)), lag)
		if s.Source.Host != "" {
			text += ", from " + s.Source.Host
		}
		d.screen.progress(text)
	}
}

// Result is the outcome of a demo.
type Result struct {
	// Written counts the clients' operations.
	Written traffic.Stats
	// Ops were applied to the target.
	Ops int64
	// LagMedian and LagMax are of the lag, taken ten times a second where it was
	// known, in seconds. LagKnown says that it was at any time.
	LagMedian, LagMax float64
	LagKnown          bool
	// SourceFailovers and TargetFailovers are how often the sets changed their
	// primary, Attempts how often the lease was acquired.
	SourceFailovers, TargetFailovers, Attempts int
	// Copied is how many documents the copy had when it was seen last, CopiedIn how
	// long it took until the target was consistent; zero if that was after the
	// clients had ended.
	Copied   int64
	CopiedIn time.Duration
	// CaughtUpIn is how long it took after the clients had ended, Took all of it.
	CaughtUpIn, Took time.Duration
	// Compared says whether the sets are equal.
	Compared compare.Report
}

func (r *Result) addLags(lags []float64) {
	if len(lags) == 0 {
		return
	}
	slices.Sort(lags)
	r.LagMedian, r.LagMax, r.LagKnown = lags[len(lags)/2], lags[len(lags)-1], true
}

// String is a summary of a few lines.
func (r *Result) String() string {
	var b strings.Builder
	w := &r.Written
	consistent := fmt.Sprintf("consistent after %.1f s", r.CopiedIn.Seconds())
	if r.CopiedIn == 0 {
		consistent = "consistent after the last write"
	}
	fmt.Fprintf(&b, "\ncopied     about %s documents while they were written to; %s\n", grouped(r.Copied), consistent)
	fmt.Fprintf(&b, "mirrored   %s operations in %.1f s, %.1f s of it after the last write\n",
		grouped(r.Ops), r.Took.Seconds(), r.CaughtUpIn.Seconds())
	fmt.Fprintf(&b, "written    %s statements, %s transactions (%s of them large), %s changes of collections and indexes\n",
		grouped(w.Writes), grouped(w.Transactions), grouped(w.Large), grouped(w.Commands))
	lag := "unknown: the clients ended before it was known"
	if r.LagKnown {
		lag = fmt.Sprintf("%.3f s in the median, %.3f s at most", r.LagMedian, r.LagMax)
	}
	fmt.Fprintf(&b, "lag        %s\n", lag)
	fmt.Fprintf(&b, "failovers  %d of the source, %d of the target; the lease was acquired %d times\n",
		r.SourceFailovers, r.TargetFailovers, r.Attempts)
	verdict := "OK  "
	if !r.Compared.Equal() {
		verdict = "FAIL"
	}
	fmt.Fprintf(&b, "%s       %s", verdict, r.Compared.String())
	return b.String()
}

// grouped is a number with commas.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
