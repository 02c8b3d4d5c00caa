package checkpoint

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestDivergedAdd: of operations on a collection the newest one is described, also of one transaction, in whatever order they are added.
func TestDivergedAdd(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	ts := func(s uint32) bson.Timestamp { return bson.Timestamp{T: s, I: 1} }
	one := []Diverged{
		{NS: "d.a", Source: "d.s", Ops: 1, First: ts(5), Last: ts(5), Op: 3, Since: at(50), Until: at(50), What: "the fourth operation"},
		{NS: "d.b", Source: "d.s", Ops: 2, First: ts(5), Last: ts(5), Op: 7, Since: at(51), Until: at(52), What: "the eighth operation"},
		{NS: "d.c", Source: "d.s", Ops: 4, First: ts(4), Last: ts(4), Op: 9, Since: at(40), Until: at(60), What: "an earlier entry"},
	}
	want := Diverged{NS: "d.b", Source: "d.s", Ops: 7, First: ts(4), Last: ts(5), Op: 7, Since: at(40), Until: at(60), What: "the eighth operation"}
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var sum Diverged
		for _, i := range order {
			sum.Add(&one[i])
		}
		if sum != want {
			t.Errorf("in the order %v: %+v", order, sum)
		}
	}
}
