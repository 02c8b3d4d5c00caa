package lockstest

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

func TestContention(t *testing.T) {
	n := Contention{Keys: 40, Contenders: 5, Workers: 2, Elect: locks.ElectConfig{Store: NewMemory(), Every: 5 * time.Millisecond}}.Run(t)
	if n < 40+5*2 {
		t.Errorf("%d locks were taken", n)
	}
}

func TestOverlaps(t *testing.T) {
	at := func(second int64, election string) locks.Moment {
		return locks.Moment{Time: time.Unix(second, 0), Election: election}
	}
	holds := []hold{
		{key: 2, token: 2, first: at(30, "a"), last: at(40, "b")},
		{key: 1, token: 1, first: at(10, "a"), last: at(21, "a")}, // until after the next one began
		{key: 1, token: 2, first: at(20, "a"), last: at(30, "a")},
		{key: 1, token: 3, first: at(30, "a"), last: at(40, "a")},
		{key: 1, token: 4, first: at(35, "b"), last: at(50, "b")}, // another clock
		{key: 2, token: 1, first: at(10, "a"), last: at(20, "a")},
	}
	if faults := overlaps(holds); len(faults) != 1 {
		t.Errorf("%q", faults)
	}
}
