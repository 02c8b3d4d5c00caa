package pace

import (
	"math"
	"time"
)

const (
	// The fixed costs of a document and of a call, in addition to the cost of their
	// bytes, expressed in bytes.
	docCost, callCost = 512, 32 << 10
	// A sample has at least this many calls and this much work.
	sampleCalls, sampleWork = 4, 1 << 20
	// learned is the number of samples after which the baseline is used.
	learned = 5
	// slowBy times the usual duration is a strike; strikesOut strikes in a row are a
	// sign of pressure.
	slowBy, strikesOut = 3, 3
	// The time constants with which the baseline follows faster and slower samples.
	followFaster, followSlower = 30 * time.Second, 10 * time.Minute
	// idleAfter is the time without a sample after which the last samples are
	// discarded.
	idleAfter = 30 * time.Second
)

// latency compares the duration of work with its usual duration.
type latency struct {
	// spent, work and calls are of the sample in progress; since is when the previous
	// sample ended.
	spent time.Duration
	work  float64
	calls int
	since time.Time
	// usual is the baseline, last the newest sample, in nanoseconds per unit of work;
	// samples counts them up to learned.
	usual, last float64
	samples     int
	strikes     int
}

func (l *latency) took(d time.Duration, docs, bytes int) {
	l.spent += d
	l.work += float64(bytes) + docCost*float64(docs) + callCost
	l.calls++
}

// sample ends a sample, if it is large enough.
func (l *latency) sample(now time.Time) (fresh bool) {
	if l.since.IsZero() {
		l.since = now
	}
	age := now.Sub(l.since)
	if l.calls < sampleCalls || l.work < sampleWork {
		if age >= idleAfter {
			l.strikes, l.since = 0, now
			l.spent, l.work, l.calls = 0, 0, 0
		}
		return false
	}
	cost := float64(l.spent) / l.work
	l.spent, l.work, l.calls, l.since, l.last = 0, 0, 0, now, cost
	if l.samples < learned {
		l.samples++
		l.usual += (cost - l.usual) / float64(l.samples)
		return true
	}
	if cost >= slowBy*l.usual {
		l.strikes++
	} else {
		l.strikes = 0
	}
	in := followSlower
	if cost < l.usual {
		in = followFaster
	}
	l.usual += (cost - l.usual) * (1 - math.Exp(-age.Seconds()/in.Seconds()))
	return true
}

// slow returns the ratio of the duration of work to its usual duration, if that is a
// sign.
func (l *latency) slow() (times float64, ok bool) {
	if l.strikes < strikesOut || l.usual <= 0 {
		return 0, false
	}
	return l.last / l.usual, true
}
