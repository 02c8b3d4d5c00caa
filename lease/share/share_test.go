package share_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// bounds of the promises, with the default times.
const (
	ttl    = 10 * time.Second
	prompt = ttl + 3*time.Second
)

func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 100)
		f.startAll(7)
		time.Sleep(8 * time.Second)
		f.even(7)
		if f.starts() != 100 {
			t.Errorf("%d starts", f.starts())
		}
	})
}

// find returns a member that coordinates, or does not.
func (f *fleet) find(coordinates bool) *process {
	for _, p := range f.all {
		if p.Coordinates() == coordinates {
			return p
		}
	}
	f.t.Fatal("there is none")
	return nil
}
