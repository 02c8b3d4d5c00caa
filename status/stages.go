package status

import (
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Stage is the load of a stage.
type Stage struct {
	// Name is syncsource, fetcher, buffer, batcher, applier or feedback.
	Name string `json:"name"`
	// Depth is how much waits in it, in DepthUnit; nil where that is not known, or nothing
	// can.
	Depth     *float64 `json:"depth"`
	DepthUnit string   `json:"depthUnit,omitempty"`
	// Busy is the share of the last ten seconds that it worked, 0 to 1: for syncsource that
	// no member was read from; for the fetcher that it parsed, or that the source had more to
	// send; for the buffer that it had no room; for the applier the mean of its writers, each
	// busy while it has a flush, the target's part of it included. Nil while it is not known.
	Busy *float64 `json:"busy"`
}

// The stages.
const (
	stageSyncsource = "syncsource"
	stageFetcher    = "fetcher"
	stageBuffer     = "buffer"
	stageBatcher    = "batcher"
	stageApplier    = "applier"
	stageFeedback   = "feedback"
)

// The sides of a bottleneck.
const (
	sideSource  = "source"
	sideTarget  = "target"
	sideProcess = "process"
	// sideOperator is an operator, who has paused or throttled the link, or may have.
	sideOperator = "operator"
)

// Bottleneck is the stage that sets the pace of a link that has something to apply.
type Bottleneck struct {
	Stage string `json:"stage"`
	// Side is source, target, process (this one), operator, or empty for the operations themselves.
	Side string `json:"side"`
	// Why names the slow part, and the evidence.
	Why string `json:"why"`
}

// load is how busy the stages were between two samples: shares of the time.
type load struct {
	fetcher, batcher, dispatcher, feedback [4]float64
	// lanes is the mean of the writers, lane the busiest one, and which that is.
	lanes, lane float64
	busiest     int
	writers     int
	// seeking is the share of the samples without a member to read from.
	seeking float64
	// paused: the link was paused in one of the samples, so that a wait may have been for that. throttled: in most of those in
	// which the dispatcher waited, that was for the throttle.
	paused, throttled bool
}

// loads returns the load between the oldest and the newest sample. The tracker is locked.
func (t *Tracker) loads() (load, bool) {
	first, last, ok := t.span()
	if !ok {
		return load{}, false
	}
	all := last.at.Sub(first.at).Seconds()
	shares := func(from, to metric.Spent) (out [4]float64) {
		for i, d := range to.Sub(from) {
			out[i] = min(1, d.Seconds()/all)
		}
		return out
	}
	a, b := &first.work, &last.work
	l := load{
		fetcher: shares(a.Fetcher, b.Fetcher), batcher: shares(a.Batcher, b.Batcher),
		dispatcher: shares(a.Dispatcher, b.Dispatcher), feedback: shares(a.Feedback, b.Feedback),
	}
	for i, spent := range b.Lanes {
		var before metric.Spent
		if i < len(a.Lanes) {
			before = a.Lanes[i]
		}
		busy := shares(before, spent)[metric.Busy]
		l.lanes += busy
		if busy > l.lane {
			l.lane, l.busiest = busy, i
		}
	}
	l.writers = len(b.Lanes)
	l.lanes /= max(1, float64(l.writers))
	waits, throttled := 0, 0
	for i := range t.rate {
		was := &t.rate[i]
		if !was.reads {
			l.seeking += 1 / float64(len(t.rate))
		}
		l.paused = l.paused || was.paused
		if was.applier.WaitsFor != "" {
			waits++
		}
		if was.applier.Throttled {
			throttled++
		}
	}
	l.throttled = 2*throttled > waits
	return l, true
}

// stages returns the stages in the order of an entry. The tracker is locked.
func (t *Tracker) stages(s *Snapshot, p *monitor.Snapshot) []Stage {
	const bytes = "bytes"
	list := []Stage{
		{Name: stageSyncsource},
		{Name: stageFetcher},
		{Name: stageBuffer, DepthUnit: bytes},
		{Name: stageBatcher},
		{Name: stageApplier, DepthUnit: bytes},
		{Name: stageFeedback},
	}
	l, known := t.loads()
	if !s.leads() {
		return list
	}
	buffered, window := float64(p.Buffer.Buffered), float64(p.Applier.WindowBytes)
	list[2].Depth, list[4].Depth = &buffered, &window
	if !known {
		return list
	}
	busy := [...]float64{l.seeking, l.fetcher[metric.Busy], l.fetcher[metric.Blocked], l.batcher[metric.Busy], l.lanes, l.feedback[metric.Busy]}
	for i := range list {
		share := round(busy[i])
		list[i].Busy = &share
	}
	return list
}

const (
	// most is the share of the time from which on a goroutine sets the pace, mostLanes that
	// of the mean of the writers: between two flushes they wait for operations.
	most, mostLanes = 0.8, 0.6
	// oneLane is how busy a writer is that alone sets the pace, fewLanes how busy all are
	// then at most.
	oneLane, fewLanes = 0.9, 0.5
)

// bottleneck returns the stage that sets the pace, nil if nothing waits or that is not
// known. The tracker is locked.
func (t *Tracker) bottleneck(s *Snapshot, p *monitor.Snapshot) *Bottleneck {
	for i := range s.Waits {
		if w := &s.Waits[i]; w.Side == sideTarget && !w.Expected {
			return &Bottleneck{stageApplier, sideTarget, fmt.Sprintf("the target: %s has had no reply for %s", w.Command, coarse(s.At.Sub(w.Since)))}
		}
	}
	if s.Control != nil && s.Control.Paused != nil && s.hasBacklog() {
		return &Bottleneck{stageApplier, sideOperator, "the pause: nothing is applied until the link is resumed"}
	}
	if s.Control != nil && !s.Control.known && s.hasBacklog() {
		return &Bottleneck{stageApplier, sideOperator, "perhaps a pause: nothing is applied before the target has said whether the link is paused"}
	}
	l, known := t.loads()
	if !known || !s.hasBacklog() {
		return nil
	}
	percent := func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
	switch {
	case l.seeking >= most:
		return &Bottleneck{stageSyncsource, sideSource, "the source: no member can be read from"}
	case l.lanes >= mostLanes:
		return &Bottleneck{stageApplier, sideTarget, fmt.Sprintf("the target: the %d writers wait for it %s of the time", l.writers, percent(l.lanes))}
	case l.lane >= oneLane && l.lanes <= fewLanes:
		return &Bottleneck{stageApplier, "", fmt.Sprintf("one writer: number %d is busy %s of the time, all of them %s; operations of one document, or of a collection that needs the order of the oplog, go through one writer",
			l.busiest, percent(l.lane), percent(l.lanes))}
	case l.dispatcher[metric.Waiting] >= most && (p.Applier.Throttled || p.Applier.WaitsFor == "" && l.throttled): // it may be working just now
		return &Bottleneck{stageApplier, sideOperator, "the throttle: handing out operations waits for it " + percent(l.dispatcher[metric.Waiting]) + " of the time"}
	case l.dispatcher[metric.Waiting] >= most && l.paused:
		return nil // Since the link was resumed, nothing is known yet.
	case l.dispatcher[metric.Waiting] >= most:
		what := p.Applier.WaitsFor
		if what == "" {
			what = "earlier operations"
		}
		return &Bottleneck{stageApplier, "", fmt.Sprintf("commands and transactions that must wait for all writers: handing out operations waits %s of the time, now for %s", percent(l.dispatcher[metric.Waiting]), what)}
	case l.dispatcher[metric.Busy] >= most:
		return &Bottleneck{stageApplier, sideProcess, "this process, or a command on the target: handing out operations takes " + percent(l.dispatcher[metric.Busy]) + " of the time"}
	case l.batcher[metric.Busy] >= most:
		return &Bottleneck{stageBatcher, sideProcess, "this process: cutting batches takes " + percent(l.batcher[metric.Busy]) + " of the time"}
	case l.fetcher[metric.Busy] >= most:
		return &Bottleneck{stageFetcher, sideSource, "the source, or the network to it: reading takes " + percent(l.fetcher[metric.Busy]) + " of the time"}
	}
	return nil
}

// hasBacklog reports whether there is more to apply than the operations in flight.
func (s *Snapshot) hasBacklog() bool {
	return s.leads() && (s.is(monitor.CatchingUp) || s.Buffer.Full || s.spools() || s.Copy != nil && s.Copy.Phase == string(checkpoint.Replaying))
}

// slower names the stage that is slower than the source's writes.
func (s *Snapshot) slower() string {
	switch b := s.Bottleneck; {
	case b == nil || b.Side == sideTarget:
		return "the target is slower than the source"
	case b.Side == sideProcess:
		return "this process is slower than the source"
	case b.Side == sideSource, b.Side == sideOperator:
		return "entries read wait to be applied"
	default:
		return "operations that have to wait for each other are slower than the source"
	}
}

// paceText says how the lag continues, and what sets the pace, as the end of a sentence.
func (s *Snapshot) paceText() string {
	var out strings.Builder
	const least = 0.05 // seconds per second
	if t := s.LagTrend; t != nil {
		switch {
		case *t >= least:
			_, _ = fmt.Fprintf(&out, "; the lag grows %.1f s/s", *t)
		case *t <= -least:
			_, _ = fmt.Fprintf(&out, "; the lag shrinks %.1f s/s", -*t)
			if s.LagSeconds != nil && *s.LagSeconds > 0 {
				out.WriteString(": about " + coarse(ofSeconds(*s.LagSeconds/-*t)) + " left")
			}
		}
	}
	if b := s.Bottleneck; b != nil {
		out.WriteString("; what sets the pace is " + b.Why)
	}
	return out.String()
}
