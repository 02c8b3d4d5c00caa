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
	// askAgain is when one is asked again that did not allow it.
	askAgain = 5 * time.Minute
	// silences is for how many questions without an answer the pace is left as it
	// is.
	silences = 5
	// tellAgain is after how long another reason is told of.
	tellAgain = time.Minute
)

// answer is what a side had to say.
type answer struct {
	side *side
	// sign is what shows pressure, of kind "" where nothing does. silent tells that
	// there was no answer.
	sign   sign
	silent bool
}

// Run watches both sides until ctx is done, and returns its cause. It is called
// once. When it returns, nothing but the limits slows the copy down any more.
func (p *Pacer) Run(ctx context.Context) error {
	defer p.setFactor(1, sign{})
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

// ask asks both sides at once, the target's answer comes first.
func (p *Pacer) ask(ctx context.Context) []answer {
	answers := []answer{{side: p.sides[clone.Target]}, {side: p.sides[clone.Source]}}
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { p.askSide(ctx, &answers[i]) })
	}
	asking.Wait()
	return answers
}

// askSide asks one side, for no longer than until the next question is due.
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
			p.cfg.Observer.Log(slog.LevelWarn, "the server may not be asked how busy it is: only the time that it takes will slow the copy down",
				slog.String(keySide, string(s.name)), slog.String(keyError, err.Error()))
		}
	default:
		s.silent++
		a.silent = s.silent <= silences
	}
}

// isRefusal reports whether a server will not answer the next time either.
func isRefusal(err error) bool { return servererr.IsNotOffered(err) }

// judge changes the factor by what was said and measured. It returns what is to be
// announced of that, nil for nothing.
func (p *Pacer) judge(answers []answer) event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var first sign
	silent := false
	for i := range answers {
		a := &answers[i]
		fresh := a.side.latency.sample(now)
		if times, ok := a.side.latency.slow(); ok && a.sign.kind == "" {
			// What was measured once counts once: a copy that is slow has few samples.
			if fresh {
				a.sign = sign{a.side.name, slowWork, fmt.Sprintf("%s takes %.1f times as long as usual", working(a.side.name), times)}
			}
			a.silent = true
		}
		p.metrics.pressure(a.side.name, a.sign.kind != "")
		if first.kind == "" {
			first = a.sign
		}
		silent = silent || a.silent
	}
	was, before := p.factor, p.why
	switch {
	case first.kind != "":
		p.set(max(leastFactor, p.factor/2), first)
	case !silent:
		p.set(min(1, p.factor+step), p.why)
	}
	switch {
	// A factor that goes up and down is told of when it is as low as never before,
	// and when there is another reason, but not when reasons alternate.
	case first.kind != "" && (p.factor < p.told || now.Sub(p.toldAt) >= tellAgain && (first.side != before.side || first.kind != before.kind)):
		p.told, p.toldAt = min(p.told, p.factor), now
		if was == 1 {
			p.metrics.slowed.Inc()
		}
		return event.NewLine(slog.LevelInfo, "copy is slowed down", slog.String(keySide, string(first.side)), slog.String(keyWhy, first.text),
			slog.Float64(keyFactor, math.Round(p.factor*1e4)/1e4)) // of its speed is left
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

func (p *Pacer) setFactor(factor float64, why sign) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = factor
	p.set(factor, why)
}

// set changes the factor, and wakes paused workers. p.mu is locked.
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
