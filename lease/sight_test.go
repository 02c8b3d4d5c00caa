package lease

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// clock is a store that says what time it is, and counts how often it is asked.
type clock struct {
	now   time.Time
	asked int
}

func (c *clock) Call(context.Context, mongo.Command) (bson.Raw, error) {
	c.asked++
	return bson.Marshal(bson.D{{Key: "localTime", Value: c.now}})
}

// TestSight: what one look at many leases tells, by one look at the store's clock.
func TestSight(t *testing.T) {
	t.Parallel()
	store := &clock{now: time.UnixMilli(1_800_000_000_000)}
	granted := func(left time.Duration) Record {
		return Record{Term: 3, Holder: "p", Grant: Grant{ID: bson.NewObjectID(), TTL: 10 * time.Second, Expires: bson.NewDateTimeFromTime(store.now.Add(left))}}
	}
	released := granted(4 * time.Second)
	released.Grant.Released = true
	cases := []struct {
		name   string
		record Record
		free   bool
		wait   time.Duration
	}{
		{"nobody has it", Record{}, true, 0},
		{"held", granted(4 * time.Second), false, 4 * time.Second},
		{"held as a clock is set back a little", granted(19 * time.Second), false, 19 * time.Second},
		{"not renewed since the clock was set back", granted(6 * time.Hour), true, 6 * time.Hour},
		{"over", granted(-time.Second), true, -time.Second},
		{"released", released, true, 4 * time.Second},
		{"not renewed", Record{Term: 3, Holder: "p"}, true, 0},
		{"taken over by a process that does not renew", Record{Term: 4, Holder: "p", Superseded: true}, false, 0},
	}
	var records []Record
	for _, c := range cases {
		records = append(records, c.record)
	}
	got := must.Get(Sight(t.Context(), store, records))(t)
	for i, c := range cases {
		if got[i].Free != c.free || got[i].Wait != c.wait || got[i].Record != c.record {
			t.Errorf("%s: %+v, want free %v, %s left", c.name, got[i], c.free, c.wait)
		}
	}
	if store.asked != 1 {
		t.Errorf("the time was asked for %d times", store.asked)
	}
}
