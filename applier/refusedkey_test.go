package applier

import (
	"context"
	"sync"
	"testing"
	"time"

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
		return &easableError{op: op, err: opError(op, servererr.New(16804, "location object expected"))}
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

// waitingIndexes is a target that drops the indexes of db.a only once it has built another one there.
type waitingIndexes struct {
	Commands
	begun, built chan struct{}
}

func (c *waitingIndexes) DeferIndexes(_ context.Context, _ *oplog.Op, ns oplog.Namespace, _ func(bson.Raw) bool) ([]string, error) {
	if ns == "db.a" {
		c.begun <- struct{}{}
		<-c.built
	}
	return []string{"flat"}, nil
}

// TestRefusedKeyWaitsAlone: while the target builds another index of a collection for hours, lanes do not wait for it that defer indexes of other
// collections. Those of that collection do.
func TestRefusedKeyWaitsAlone(t *testing.T) {
	t.Parallel()
	target := &waitingIndexes{begun: make(chan struct{}, 2), built: make(chan struct{})}
	a := &Applier{}
	a.cfg.Commands = target
	var lanes sync.WaitGroup
	ease := func(ns oplog.Namespace) {
		op := &plan.Op{Target: ns, At: checkpoint.Position{OpTime: optimeOf(1)}}
		if again, err := (&writer{Applier: a}).ease(t.Context(), &easableError{op: op, err: opError(op, servererr.New(16804, "location object expected"))}); !again || err != nil {
			t.Errorf("%s: %v, %v", ns, again, err)
		}
	}
	for range 2 {
		lanes.Go(func() { ease("db.a") })
	}
	<-target.begun
	other := make(chan struct{})
	lanes.Go(func() {
		defer close(other)
		ease("db.b")
	})
	select {
	case <-other:
	case <-time.After(20 * time.Second):
		t.Error("db.b waits for db.a")
	}
	select {
	case <-target.begun:
		t.Error("two lanes defer the indexes of one collection at the same time")
	default:
	}
	close(target.built)
	lanes.Wait()
}
