package cutover_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

// stormLasts is for how many commands a storm lasts.
const stormLasts = 3

// storm is a set that answers some commands with an error of a failover: they were not executed, or their write concern is
// not known to be satisfied.
type storm struct {
	mongo.Caller
	at       int
	code     servererr.Code
	executed bool
	mu       sync.Mutex
	n        int // guarded by mu
}

// Call implements mongo.Caller.
func (s *storm) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	s.n++
	n := s.n
	s.mu.Unlock()
	if n < s.at || n >= s.at+stormLasts {
		return s.Caller.Call(ctx, cmd)
	}
	concern, err := cmd.Body.LookupErr("writeConcern", "w")
	if !s.executed || err != nil || concern.Type != bson.TypeString {
		return nil, servererr.New(s.code, "a storm")
	}
	reply, err := s.Caller.Call(ctx, cmd)
	if err != nil {
		return nil, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	return bson.Marshal(append(doc, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(s.code)}, {Key: "errmsg", Value: "a storm"}}}))
}

// stormCodes are the errors of servers that fail over, or have no resources.
var stormCodes = []servererr.Code{
	servererr.InterruptedDueToReplStateChange, servererr.PrimarySteppedDown, servererr.NotWritablePrimary, servererr.MaxTimeMSExpired,
	servererr.ExceededTimeLimit, servererr.LockTimeout, servererr.SnapshotUnavailable, servererr.NetworkTimeout, servererr.ShutdownInProgress,
	servererr.InterruptedAtShutdown, servererr.WriteConflict, servererr.WriteConcernTimeout, servererr.HostUnreachable,
	servererr.NotPrimaryNoSecondaryOk, servererr.NotPrimaryOrSecondary, servererr.Interrupted,
}

// TestStorm: an error that passes, of any command of either side, does not end a cutover.
func TestStorm(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	whole := newMoved(t, target, "whole")
	count := [2]*storm{{Caller: target, at: never}, {Caller: whole.source, at: never}}
	must.Get(cutover.Run(t.Context(), whole.config(count[0], count[1]), byBlock))(t)
	var all sync.WaitGroup
	few := make(chan struct{}, 8)
	for side, c := range count {
		for n := 1; n <= c.n; n++ {
			for i, code := range stormCodes {
				if (n+i)%4 != 0 || !race.One(n) {
					continue
				}
				m := newMoved(t, target, fmt.Sprintf("dr%d-%d-%d", side, n, i))
				sets := [2]*storm{{Caller: target, at: never}, {Caller: m.source, at: never}}
				sets[side].at, sets[side].code, sets[side].executed = n, code, n%2 == 0
				few <- struct{}{}
				all.Go(func() {
					defer func() { <-few }()
					cfg := m.config(sets[0], sets[1])
					cfg.Drain.Within, cfg.BlockWithin = 5*time.Minute, 5*time.Minute // of a busy machine
					if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil {
						t.Errorf("side %d, command %d, %s, executed %t: %v", side, n, code, n%2 == 0, err)
						return
					}
					m.isDone(m.link)
				})
			}
		}
	}
	all.Wait()
}
