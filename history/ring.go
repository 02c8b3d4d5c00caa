package history

import (
	"math"
	"time"
)

// points is the number of points of a ring.
const points = 720

// steps are the lengths of a point of each ring, in seconds.
var steps = [...]int64{5, 30, 120}

// ring has a point for each of the last steps of the clock.
type ring struct {
	// step is in seconds.
	step int64
	// last is the number of the newest step since the epoch, valid if begun is true. A
	// step's point is at its number modulo points.
	last  int64
	begun bool
	// data is NaN where nothing is known.
	data [Count][points]float32
	// sums and counts are those of the samples of the newest step.
	sums   [Count]float64
	counts [Count]int
}

// rings are one for each length of a step.
type rings [len(steps)]ring

func newRings() *rings {
	var r rings
	for i := range r {
		r[i].step = steps[i]
		r[i].clear(0, points)
	}
	return &r
}

// floor is division that rounds down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// at returns the place of a step.
func at(step int64) int { return int(step - points*floor(step, points)) }

// clear forgets n steps.
func (r *ring) clear(from, n int64) {
	nan := float32(math.NaN())
	for i := range min(n, points) {
		for s := range r.data {
			r.data[s][at(from+i)] = nan
		}
	}
}

// moveTo makes a step the newest one.
func (r *ring) moveTo(step int64) {
	switch {
	case !r.begun:
		r.clear(0, points)
	case step > r.last:
		r.clear(r.last+1, step-r.last)
	case step < r.last:
		// The clock was set back. Steps later than now cannot be distinguished from future
		// ones, and are dropped, together with the present step, whose samples are not known any more.
		r.clear(step, r.last-step+1)
	default:
		return
	}
	r.begun, r.last = true, step
	r.sums, r.counts = [Count]float64{}, [Count]int{}
}

// add adds a sample.
func (r *ring) add(now time.Time, v *Values) {
	r.moveTo(floor(now.Unix(), r.step))
	i := at(r.last)
	for s, value := range v {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		value = max(0, value)
		r.counts[s]++
		r.sums[s] += value
		was := float64(r.data[s][i])
		if r.counts[s] > 1 || !math.IsNaN(was) {
			switch figures[s].by {
			case largest:
				value = max(value, was)
			case least:
				value = min(value, was)
			case mean:
				value = r.sums[s] / float64(r.counts[s])
			case latest:
			}
		}
		r.data[s][i] = float32(value)
	}
}

// point returns the value of a step, NaN if it is not known.
func (r *ring) point(s Series, step int64) float32 {
	if !r.begun || step > r.last || step <= r.last-points {
		return float32(math.NaN())
	}
	return r.data[s][at(step)]
}

// fill takes the steps from another ring of which nothing is known here, and peaks: of a step
// that both have, each has seen a part. Steps that are later than the newest one here are of a
// clock that is ahead, and left out.
func (r *ring) fill(o *ring) {
	switch {
	case !o.begun:
		return
	case !r.begun:
		*r = *o
		return
	}
	for step := r.last - points + 1; step <= r.last; step++ {
		for s := range r.data {
			here, there := &r.data[s][at(step)], o.point(Series(s), step)
			switch by := figures[s].by; {
			case math.IsNaN(float64(there)):
			case math.IsNaN(float64(*here)), by == largest && there > *here, by == least && there < *here:
				*here = there
			}
		}
	}
}
