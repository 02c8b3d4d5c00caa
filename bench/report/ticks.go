package report

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
)

// fixed are ticks that are known beforehand.
type fixed []plot.Tick

// Ticks implements plot.Ticker.
func (f fixed) Ticks(_, _ float64) []plot.Tick { return f }

// spans reports whether values reach so far that a linear axis would show the small
// ones as nothing.
func spans(low, high, times float64) bool { return low > 0 && high/low >= times }

// step is a round number of which high has four to eight.
func step(high float64) float64 {
	if high <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(high)))
	for _, part := range []float64{0.1, 0.2, 0.25, 0.5, 1} {
		if high/(power*part) <= 6.5 {
			return power * part
		}
	}
	return power * 2
}

// linearTicks are round numbers from zero to the first that is not below high.
func linearTicks(high float64) []plot.Tick {
	by := step(high)
	var ticks []plot.Tick
	for i := 0; ; i++ {
		v := by * float64(i)
		ticks = append(ticks, plot.Tick{Value: v, Label: short(v)})
		if v >= high*(1-1e-9) && i > 0 {
			return ticks
		}
	}
}

// logTicks are the powers of ten around the values, with 2 and 5 between them where
// there are few. The first is not above low, the last not below high.
func logTicks(low, high float64) []plot.Tick {
	from, to := math.Floor(math.Log10(low)+1e-9), math.Ceil(math.Log10(high)-1e-9)
	between := []float64{1, 2, 5}
	if to-from > 3 {
		between = between[:1]
	}
	var ticks []plot.Tick
	for e := from; e <= to; e++ {
		for _, m := range between {
			ticks = append(ticks, plot.Tick{Value: m * math.Pow(10, e), Label: short(m * math.Pow(10, e))})
		}
	}
	first, last := 0, len(ticks)-1
	for first+1 < len(ticks) && ticks[first+1].Value <= low*(1+1e-9) {
		first++
	}
	for last-1 >= first && ticks[last-1].Value >= high*(1-1e-9) {
		last--
	}
	return ticks[first : last+1]
}

// valueTicks are at the values themselves. place says where on an axis from 0 to 1
// one is; a tick too near to the one before has no label.
func valueTicks(values []float64, place func(float64) float64) []plot.Tick {
	const room = 0.115
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	ticks := make([]plot.Tick, 0, len(values))
	last := math.Inf(-1)
	for _, v := range values {
		t := plot.Tick{Value: v}
		if at := place(v); at-last >= room {
			t.Label, last = short(v), at
		}
		ticks = append(ticks, t)
	}
	return ticks
}
