package history

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model keeps all samples, and reduces them when it is asked.
type model struct {
	step    int64
	samples []modelSample
	// of are the samples by step, once sort was called.
	of map[int64][]modelSample
}

func (m *model) sort() {
	m.of = map[int64][]modelSample{}
	for _, s := range m.samples {
		m.of[s.step] = append(m.of[s.step], s)
	}
}

type modelSample struct {
	step int64
	v    Values
}

func (m *model) add(now time.Time, v Values) {
	step := int64(math.Floor(float64(now.Unix()) / float64(m.step)))
	// Samples older than the ring are forgotten; if the clock was set back, those not before
	// this step are dropped.
	back := len(m.samples) > 0 && m.samples[len(m.samples)-1].step > step
	m.samples = slices.DeleteFunc(m.samples, func(s modelSample) bool { return s.step <= step-points || back && s.step >= step })
	m.samples = append(m.samples, modelSample{step, v})
}

// point reduces the samples of a step: slow and obvious.
func (m *model) point(s Series, step int64) float64 {
	var list []float64
	for _, one := range m.of[step] {
		if !math.IsNaN(one.v[s]) {
			list = append(list, one.v[s])
		}
	}
	if len(list) == 0 {
		return math.NaN()
	}
	out := list[0]
	sum := 0.0
	for _, v := range list {
		sum += v
		switch {
		case s == OplogWindowSeconds:
			out = min(out, v)
		case s >= CopyDocs:
			out = v
		default:
			out = max(out, v)
		}
	}
	if s >= InsertsPerSecond && s <= BytesPerSecond {
		return sum / float64(len(list))
	}
	return out
}

func same(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-6*math.Abs(b)
}

// TestRings: whatever the samples, the gaps and the steps of the clock, each span shows what
// a model shows that keeps all samples.
func TestRings(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(rapid.Just(math.NaN()), rapid.Float64Range(1e-3, 1e12), rapid.Just(0.0))
	rapid.Check(t, func(t *rapid.T) {
		h := New()
		models := make([]model, len(steps))
		for i := range models {
			models[i].step = steps[i]
		}
		now := time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "begins"), 0)
		for range rapid.IntRange(0, 40).Draw(t, "samples") {
			v := Unknown()
			for range rapid.IntRange(0, 4).Draw(t, "values") {
				v[rapid.IntRange(0, int(Count)-1).Draw(t, "series")] = value.Draw(t, "value")
			}
			h.Add(now, v)
			for i := range models {
				models[i].add(now, v)
			}
			// Mostly a second or some steps, at times a gap of days, or a clock that is set back.
			ahead := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 300), rapid.Int64Range(0, 200_000), rapid.Int64Range(-90_000, 0))
			now = now.Add(time.Duration(ahead.Draw(t, "passes")) * time.Second)
			if now.Unix() < 0 {
				now = time.Unix(0, 0)
			}
		}
		for i, span := range spans {
			models[i].sort()
			view, err := h.View(span, now)
			if err != nil {
				t.Fatal(err)
			}
			newest := int64(math.Floor(float64(now.Unix()) / float64(steps[i])))
			if view.From.Unix() != (newest-points+1)*steps[i] || view.Step != time.Duration(steps[i])*time.Second {
				t.Fatalf("%s begins at %s", span, view.From)
			}
			// The clock was set back after the last sample: later samples are not shown.
			for s := range Count {
				for k := range int64(points) {
					got, want := float64(view.Series[s][k]), models[i].point(s, newest-points+1+k)
					if !same(got, want) {
						t.Fatalf("%s, %s, %d steps ago: %v, want %v", span, s, points-1-k, got, want)
					}
				}
			}
		}
	})
}

// TestPeak: a peak of a second is there a day later, a gap stays one, and a mean does not
// hide the lag.
func TestPeak(t *testing.T) {
	t.Parallel()
	h := New()
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 24 * 3600 {
		if i >= 40_000 && i < 41_000 {
			continue // the process did not run
		}
		v := Unknown()
		v[LagSeconds], v[InsertsPerSecond], v[OplogWindowSeconds] = 0.5, 100, 3600
		if i == 30_000 {
			v[LagSeconds], v[InsertsPerSecond], v[OplogWindowSeconds] = 240, 0, 60
		}
		h.Add(begin.Add(time.Duration(i)*time.Second), v)
	}
	view, err := h.View(24*time.Hour, begin.Add(24*time.Hour-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	lag, inserts, window := view.Series[LagSeconds], view.Series[InsertsPerSecond], view.Series[OplogWindowSeconds]
	if lag[250] != 240 || lag[249] != 0.5 || window[250] != 60 || inserts[250] > 99.5 || inserts[250] < 99 {
		t.Errorf("the peak: %v %v %v", lag[250], window[250], inserts[250])
	}
	for i, v := range lag {
		if gap := i > 40_000/120 && i < 41_000/120; gap != math.IsNaN(float64(v)) {
			t.Errorf("step %d: %v", i, v)
		}
	}
	if _, err := h.View(2*time.Hour, begin); err == nil {
		t.Error("there is a history of 2h")
	}
}

// TestFill: the history stored by another process fills only points that are not known here.
func TestFill(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	sample := func(h *History, at time.Time, lag float64) {
		v := Unknown()
		v[LagSeconds] = lag
		h.Add(at, v)
	}
	before, after := New(), New()
	sample(before, now.Add(-10*time.Minute), 1)
	sample(before, now.Add(-2*time.Minute), 5)
	sample(before, now.Add(-time.Minute), 2)
	sample(before, now.Add(time.Minute), 3) // its clock is ahead
	sample(after, now.Add(-2*time.Minute), 4)
	sample(after, now.Add(-time.Minute), 7)
	sample(after, now, 8)
	after.Fill(before.Stored())
	at := func(h *History, d time.Duration) float32 {
		view, err := h.View(time.Hour, now.Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return view.Series[LagSeconds][int(now.Add(d).Sub(view.From)/view.Step)]
	}
	if a, b, c := at(after, -10*time.Minute), at(after, -time.Minute), at(after, 0); a != 1 || b != 7 || c != 8 {
		t.Errorf("filled: %v %v %v", a, b, c)
	}
	if v := at(after, -2*time.Minute); v != 5 {
		t.Errorf("a peak that the other has seen: %v", v)
	}
	if v := at(after, time.Minute); !math.IsNaN(float64(v)) {
		t.Errorf("the future: %v", v)
	}
	standby, fresh := New(), New()
	sample(standby, now, 100)
	standby.Replace(before.Stored())
	fresh.Fill(before.Stored())
	for _, h := range []*History{standby, fresh} {
		if a, b := at(h, -time.Minute), at(h, time.Minute); a != 2 || b != 3 {
			t.Errorf("as it was stored: %v %v", a, b)
		}
	}
	if v := at(standby, 0); !math.IsNaN(float64(v)) {
		t.Errorf("its own is still there: %v", v)
	}
}
