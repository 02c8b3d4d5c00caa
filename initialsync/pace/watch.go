package pace

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

const (
	// askAgain is when a side that refused is asked again.
	askAgain = 5 * time.Minute
	// silences is the number of requests without an answer for which the pace remains
	// unchanged.
	silences = 5
	// tellAgain is the minimum time before another reason is announced.
	tellAgain = time.Minute
)

// answer is the reply of a side.
type answer struct {
	side *side
	// sign is the sign of pressure, of kind "" if there is none. silent means that
	// there was no answer.
	sign   sign
	silent bool
}

// Run watches both sides until ctx is done, and returns its cause. It is called once.
// After it has returned, only the limits slow the copy down.
func (p *Pacer) Run(ctx context.Context) error {
	defer p.watchesNoMore()
	tick := time.NewTicker(p.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		answers := p.ask(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if e := p.judge(answers); e != nil {
			p.cfg.Observer.Tell(e)
		}
	}
}

// ask asks both sides concurrently; the target's answer comes first.
func (p *Pacer) ask(ctx context.Context) []answer {
	answers := []answer{{side: p.sides[clone.Target]}, {side: p.sides[clone.Source]}}
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { p.askSide(ctx, &answers[i]) })
	}
	asking.Wait()
	return answers
}

// askSide asks one side, and waits at most until the next request is due.
func (p *Pacer) askSide(ctx context.Context, a *answer) {
	s := a.side
	if s.caller == nil || time.Now().Before(s.again) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Every)
	defer cancel()
	reply, err := s.caller.Call(ctx, mongo.Command{DB: "admin", Body: statusCommand})
	switch {
	case err == nil:
		s.silent, s.refused = 0, false
		a.sign.kind, a.sign.text, _ = pressure(reply)
		a.sign.side = s.name
	case isRefusal(err):
		s.again = time.Now().Add(askAgain)
		if !s.refused {
			s.refused = true
			p.cfg.Observer.Log(slog.LevelWarn, "no privilege for serverStatus: only the server's latency will slow the copy down",
				slog.String(keySide, string(s.name)), slog.String(keyError, err.Error()))
		}
	default:
		s.silent++
		a.silent = s.silent <= silences
	}
}

// isRefusal reports whether a server will not answer the next request either.
func isRefusal(err error) bool { return servererr.IsNotOffered(err) }

// read returns the first sign of pressure in the answers and in the latency of each side, and whether a side says
// nothing: it did not answer, or its latency has no new sample.
func (p *Pacer) read(answers []answer, now time.Time) (first sign, silent bool) {
	for i := range answers {
		a := &answers[i]
		fresh := a.side.latency.sample(now)
		if times, ok := a.side.latency.slow(); ok && a.sign.kind == "" {
			// Each sample counts once: a slow copy has few samples.
			if fresh {
				a.sign = sign{a.side.name, slowWork, fmt.Sprintf("%s takes %.1f times as long as usual", working(a.side.name), times)}
			}
			a.silent = true
		}
		if a.sign.kind != "" || !a.silent {
			p.metrics.pressure(a.side.name, a.sign.kind != "")
		}
		if first.kind == "" {
			first = a.sign
		}
		silent = silent || a.silent
	}
	return first, silent
}

// judge adjusts the factor to the answers and samples. It returns the event to
// announce, nil for none.
func (p *Pacer) judge(answers []answer) event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	first, silent := p.read(answers, now)
	was, before := p.factor, p.why
	switch {
	case first.kind != "":
		p.set(max(leastFactor, p.factor/2), first)
	case !silent:
		p.set(min(1, p.factor+step), p.why)
	}
	switch {
	// A factor that goes up and down is announced when it reaches a new minimum, and
	// when there is another reason, but not when reasons alternate.
	case first.kind != "" && (p.factor < p.told || now.Sub(p.toldAt) >= tellAgain && (first.side != before.side || first.kind != before.kind)):
		p.told, p.toldAt = min(p.told, p.factor), now
		if was == 1 {
			p.metrics.slowed.Inc()
		}
		return event.NewLine(slog.LevelInfo, "copy is slowed down", slog.String(keySide, string(first.side)), slog.String(keyWhy, first.text),
			slog.Float64(keyFactor, math.Round(p.factor*1e4)/1e4)) // the remaining speed
	case p.factor == 1 && was < 1:
		p.told, p.why = 1, sign{}
		return event.NewLine(slog.LevelInfo, "copy is at full speed again")
	}
	return nil
}

func working(side clone.Side) string {
	if side == clone.Source {
		return "reading"
	}
	return "writing"
}

// watchesNoMore forgets all pressure.
func (p *Pacer) watchesNoMore() {
	p.setFactor(1, sign{})
	for side := range p.sides {
		p.metrics.pressure(side, false)
	}
}

func (p *Pacer) setFactor(factor float64, why sign) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = factor
	p.set(factor, why)
}

// set changes the factor, and wakes paused workers. p.mu is held.
func (p *Pacer) set(factor float64, why sign) {
	p.why = why
	if p.factor == factor {
		return
	}
	p.factor = factor
	p.metrics.factor.Set(factor)
	close(p.paced)
	p.paced = make(chan struct{})
}
