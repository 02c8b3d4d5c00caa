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

// TestRefusedByVersion: what a target of another version cannot index, or not with as many keys, leaves the index out. What no version
// indexes is not a document of the source's.
func TestRefusedByVersion(t *testing.T) {
	t.Parallel()
	for message, eased := range map[string]bool{
		"Insert of geo object exceeded maximum number of generated keys":      true,
		"Field 'a' of text index contains an array in document: { a: [ 1 ] }": false,
	} {
		w := &writer{Applier: &Applier{}}
		w.cfg.Commands = &oneIndex{}
		op := &plan.Op{Mode: plan.ModeExact, At: checkpoint.Position{OpTime: optimeOf(1)}}
		err := w.refused(t.Context(), op, servererr.New(servererr.CannotBuildIndexKeys, "%s", message))
		if again, err := w.ease(t.Context(), err); again != eased || (err == nil) != eased {
			t.Errorf("%s: tried again %v, %v", message, again, err)
		}
	}
}
