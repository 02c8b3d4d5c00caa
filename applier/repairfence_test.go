package applier

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// A repair writes nothing once another process has the link, or a failover has taken back what a
// lane had written, and ends the attempt.
func TestRepairFenced(t *testing.T) {
	for _, rewound := range []bool{false, true} {
		r := newRig(t, 2, mongosim.Options{Members: 1})
		r.target.prepareCuts(t)
		l := newCutLog(t, 1, 0)
		c := r.repairer(t, l, nil)
		lanes := r.target.documents(t, "replicator.lanes")
		c.send(l.sourceLog, start)
		c.reaches(l.optime())
		before := texts(r.target.documents(t, "db.a"))
		if rewound {
			for _, doc := range lanes {
				r.target.run(t, "replicator", bson.D{{Key: "update", Value: metadata.Lanes}, {Key: "updates", Value: bson.A{bson.D{
					{Key: "q", Value: bson.D{{Key: "_id", Value: doc.Lookup("_id")}}}, {Key: "u", Value: doc},
				}}}})
			}
		} else {
			must.Get(r.store.Acquire(t.Context(), r.term))(t)
		}
		done := make(chan Repaired, 1)
		c.hand(&Repair{
			NS: "db.a", IDs: idsOf(1), After: l.optime().TS, Done: func(out Repaired) { done <- out },
			Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) { return nil, nil },
		})
		if out := c.became(done); out.State != RepairLater {
			t.Fatalf("rewound %t: %+v", rewound, out)
		}
		want := lease.ErrFenced
		if rewound {
			want = lease.ErrRewound
		}
		must.Fail(t, c.ended(), want)
		if diff := cmp.Diff(before, texts(r.target.documents(t, "db.a"))); diff != "" {
			t.Error(diff)
		}
	}
}

// A repair that is about to be committed writes nothing if another process acquires the lease before
// that.
func TestRepairFencedAtCommit(t *testing.T) {
	r, l, c := repairRig(t)
	before := texts(r.target.documents(t, "db.a"))
	looked, acquired := atomic.Bool{}, sync.Once{}
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "find" && cmd.DB == "db" {
			looked.Store(true)
		}
		if simcaller.Name(cmd) == "commitTransaction" && looked.Load() {
			acquired.Do(func() {
				if _, err := r.store.Acquire(context.Background(), r.term); err != nil {
					t.Error(err)
				}
			})
		}
		return nil, false
	})
	done := make(chan Repaired, 1)
	c.hand(&Repair{
		NS: "db.a", IDs: idsOf(1), After: l.optime().TS, Done: func(out Repaired) { done <- out },
		Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) { return nil, nil },
	})
	if out := c.became(done); out.State != RepairLater {
		t.Fatalf("%+v", out)
	}
	must.Fail(t, c.ended(), lease.ErrFenced)
	if diff := cmp.Diff(before, texts(r.target.documents(t, "db.a"))); diff != "" {
		t.Error(diff)
	}
}
