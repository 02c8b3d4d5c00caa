package syncsource

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// oldestMember is a member of the source whose oplog begins at a time, 0 if it is away, and
// that takes some time for an answer.
type oldestMember struct {
	begins, calls atomic.Uint32
	takes         time.Duration
}

// Call implements mongo.Caller.
func (m *oldestMember) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	m.calls.Add(1)
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	begins := m.begins.Load()
	if begins == 0 {
		return nil, errors.New("away")
	}
	first := bson.D{{Key: "ts", Value: bson.Timestamp{T: begins, I: 1}}, {Key: "t", Value: int64(1)}, {Key: "wall", Value: time.Unix(int64(begins), 0)}}
	return bson.Marshal(bson.D{
		{Key: "cursor", Value: bson.D{{Key: "firstBatch", Value: bson.A{first}}, {Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"}}},
		{Key: "ok", Value: 1},
	})
}

// TestOldestEntries: which members' answers count, and for how long.
func TestOldestEntries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		members := map[string]*oldestMember{"late": {}, "slow": {takes: 5 * time.Second}, "away": {}, "hangs": {takes: time.Hour}}
		members["late"].begins.Store(50)
		members["slow"].begins.Store(10)
		o, at := (&Resolver{}).OldestEntries(&sync.WaitGroup{}, false), oplog.NewOpTime(20, 1, 1)
		look := func(reaches, answered bool, hosts ...string) {
			t.Helper()
			for _, host := range hosts {
				o.ask(t.Context(), host, members[host])
			}
			ctx, cancel := context.WithTimeout(t.Context(), answersWithin)
			defer cancel()
			if r, a := o.reach(ctx, hosts, at); r != reaches || a != answered {
				t.Errorf("%v: reaches %t, answered %t", hosts, r, a)
			}
		}
		look(false, false, "away", "hangs")
		look(false, true, "late", "slow")
		// It is not asked again while its answer is due, and that counts for the next looks.
		look(false, true, "late", "slow")
		look(true, true, "late", "slow")
		if n := members["slow"].calls.Load(); n != 1 {
			t.Errorf("the slow member was asked %d times", n)
		}
		// What can no longer be read from does not count; that the oplog was gone there does.
		look(false, true, "away")
		members["late"].begins.Store(0)
		look(false, true, "late")
		// A member that hangs is asked again.
		time.Sleep(OldestWithin)
		look(false, true, "hangs")
		if n := members["hangs"].calls.Load(); n != 2 {
			t.Errorf("the member that hangs was asked %d times", n)
		}
		time.Sleep(OldestWithin)
		o.asking.Wait()
	})
}
