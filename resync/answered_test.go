package resync

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/request"
)

// TestAnsweredBefore: a process that does not hear that its answer was stored, by which a collection is the link's again, does not
// answer a request that has been made since: neither by an operator, nor as the data was damaged during the copy.
func TestAnsweredBefore(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	for i, during := range []bool{false, true} {
		w := newWorld(t, to, fmt.Sprintf("answered-%d", i))
		w.ok(w.asks().Resync(t.Context(), "shop.a"))
		p := w.start()
		if during {
			w.ok(p.attempt(at(110)))
			w.ok(w.asks().ResyncAgain(t.Context(), "shop.a"))
		}
		var answers, lost atomic.Bool
		to.Intercept(func(cmd mongo.Command) (error, bool) {
			switch name := simcaller.Name(cmd); {
			case name == "update" && cmd.Body.Lookup("update").StringValue() == "requests":
				state, _ := cmd.Docs[0].Lookup("u", "$set", "state").StringValueOK()
				answers.Store(state == request.Done)
			case name == "commitTransaction" && answers.Load() && lost.CompareAndSwap(false, true):
				return &mongo.LostError{Host: "target", Err: errors.New("no answer")}, true
			}
			return nil, false
		})
		err := w.resyncOnce(p, 120, 120)
		to.Intercept(nil)
		if err == nil || !lost.Load() {
			t.Fatalf("the answer was not lost: %v", err)
		}
		if !during {
			w.ok(w.asks().Resync(t.Context(), "shop.a"))
		}
		if until, err := p.Merge(p.ctx, t.Context()); err != nil || !until.IsNull() {
			t.Fatalf("until %s: %v", until, err)
		}
		w.ok(w.resyncOnce(p, 140, 140))
		w.ok(w.resyncOnce(p, 160, 160))
		w.isDone(p)
		if w.begun["shop.a"] != 2 {
			t.Errorf("during the copy %t: copied %d times", during, w.begun["shop.a"])
		}
		p.kill()
	}
}
