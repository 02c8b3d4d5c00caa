package applier

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// oneIndex is a target with one index that refuses documents.
type oneIndex struct {
	Commands
	dropped bool
}

func (c *oneIndex) DeferIndexes(context.Context, *oplog.Op, oplog.Namespace, func(bson.Raw) bool) ([]string, error) {
	if c.dropped {
		return nil, nil
	}
	c.dropped = true
	return []string{"flat"}, nil
}

// TestRefusedKey: an index may refuse documents of two lanes at the same time. The second lane finds that the first one has dropped it, and
// tries again too; it does so once.
func TestRefusedKey(t *testing.T) {
	t.Parallel()
	a := &Applier{}
	a.cfg.Commands = &oneIndex{}
	refusal := func(entry int) error {
		op := &plan.Op{At: checkpoint.Position{OpTime: optimeOf(entry)}}
		return &copiedError{op: op, err: opError(op, servererr.New(16804, "location object expected"))}
	}
	for lane := range 2 {
		w := &writer{Applier: a}
		if again, err := w.ease(t.Context(), refusal(lane)); !again || err != nil {
			t.Errorf("lane %d: %v, %v", lane, again, err)
		}
		if lane == 0 {
			continue
		}
		if again, err := w.ease(t.Context(), refusal(lane)); again || err == nil {
			t.Errorf("lane %d tries twice: %v, %v", lane, again, err)
		}
	}
}
