package metric

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMeter: the time is that of the phases, the present one included.
func TestMeter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var m Meter
		time.Sleep(time.Hour)
		if got := m.Spent(time.Now()); got != (Spent{}) {
			t.Errorf("before it ran: %v", got)
		}
		m.Enter(Busy)
		time.Sleep(3 * time.Second)
		before := m.Spent(time.Now())
		time.Sleep(2 * time.Second)
		m.Enter(Blocked)
		time.Sleep(time.Second)
		m.Enter(Idle)
		time.Sleep(4 * time.Second)
		m.Recount(Idle, Busy, 3*time.Second)
		m.Enter(Waiting)
		time.Sleep(time.Second)
		want := Spent{Idle: time.Second, Busy: 8 * time.Second, Blocked: time.Second, Waiting: time.Second}
		if got := m.Spent(time.Now()); got != want || got.Sub(before)[Busy] != 5*time.Second {
			t.Errorf("%v after %v, want %v", got, before, want)
		}
	})
}

// TestMeters: each number has one meter, and nil ones measure nothing.
func TestMeters(t *testing.T) {
	t.Parallel()
	var none *Meters
	none.At(3).Enter(Busy)
	none.At(3).Recount(Idle, Busy, time.Second)
	synctest.Test(t, func(t *testing.T) {
		var list Meters
		list.At(2).Enter(Busy)
		time.Sleep(time.Second)
		if got := list.Spent(time.Now()); len(got) != 3 || got[2][Busy] != time.Second || list.At(0) == list.At(1) {
			t.Errorf("%v", got)
		}
	})
}
