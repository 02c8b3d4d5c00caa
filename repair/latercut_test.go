package repair

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// cuts makes one cut after the other, the last one again and again.
type cuts []checkpoint.Cut

// Cut implements Cuts.
func (*cuts) Cut() {}

// NewestCut implements Cuts.
func (c *cuts) NewestCut() (checkpoint.Cut, string) {
	cut := (*c)[0]
	*c = (*c)[min(1, len(*c)-1):]
	return cut, ""
}

// TestLaterCut: documents are compared at a cut that has both what the repair has read from the source and what it has written
// to the target, whichever groups came in whichever order.
func TestLaterCut(t *testing.T) {
	t.Parallel()
	cut := func(source, target uint32) checkpoint.Cut {
		return checkpoint.Cut{Source: oplog.NewOpTime(source, 1, 1), Target: bson.Timestamp{T: target}}
	}
	synctest.Test(t, func(t *testing.T) {
		made := cuts{cut(99, 49), cut(99, 60), cut(120, 50), cut(100, 51), cut(130, 70)}
		j := &job{m: &Manager{cfg: Config{Cuts: &made, Patience: time.Minute}}}
		j.add(&applier.Repaired{Source: oplog.NewOpTime(90, 1, 1), Target: bson.Timestamp{T: 50}})
		j.add(&applier.Repaired{Source: oplog.NewOpTime(100, 1, 1), Target: bson.Timestamp{T: 48}})
		if got := must.Get(j.laterCut(t.Context(), j.sum.Target))(t); got != cut(100, 51) {
			t.Errorf("it compares at %+v", got)
		}
	})
}
