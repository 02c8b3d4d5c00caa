package pace

import (
	"math"
	"time"
)

const (
	// A document and a call have costs of their own, beside those of their bytes:
	// as much as so many bytes.
	docCost, callCost = 512, 32 << 10
	// A sample has so many calls and so much work at least.
	sampleCalls, sampleWork = 4, 1 << 20
	// learned is after how many samples the baseline is believed.
	learned = 5
	// slowBy is how many times as long as usual is a strike, and strikesOut how many
	// strikes in a row are a sign of pressure.
	slowBy, strikesOut = 3, 3
	// The baseline follows what is faster, and what is slower, in about that time.
	followFaster, followSlower = 30 * time.Second, 10 * time.Minute
	// idleAfter is after how long without a sample nothing is known any more of how
	// things are.
	idleAfter = 30 * time.Second
)

// latency compares how long work takes with how long it used to take.
type latency struct {
	// spent, work and calls are of the sample that is being taken; begun is when
	// the sample before it ended.
	spent time.Duration
	work  float64
	calls int
	begun time.Time
	// usual is the baseline, last the newest sample, in nanoseconds for each unit
	// of work; samples counts them up to learned.
	usual, last float64
	samples     int
	strikes     int
}

func (l *latency) took(d time.Duration, docs, bytes int) {
	l.spent += d
	l.work += float64(bytes) + docCost*float64(docs) + callCost
	l.calls++
}

// sample ends a sample, if there is enough for one.
func (l *latency) sample(now time.Time) (fresh bool) {
	if l.begun.IsZero() {
		l.begun = now
	}
	age := now.Sub(l.begun)
	if l.calls < sampleCalls || l.work < sampleWork {
		if age >= idleAfter {
			l.strikes, l.begun = 0, now
			l.spent, l.work, l.calls = 0, 0, 0
		}
		return false
	}
	cost := float64(l.spent) / l.work
	l.spent, l.work, l.calls, l.begun, l.last = 0, 0, 0, now, cost
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

// slow tells how many times as long as usual work takes, if that is a sign.
func (l *latency) slow() (times float64, ok bool) {
	if l.strikes < strikesOut || l.usual <= 0 {
		return 0, false
	}
	return l.last / l.usual, true
}
