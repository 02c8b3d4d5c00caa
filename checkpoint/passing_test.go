package checkpoint

import (
	"context"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
)

// bookkeeping makes each kind of change to a link's metadata once.
func bookkeeping(ctx context.Context, s *Store) error {
	if err := s.Create(ctx, copyState(2)); err != nil {
		return err
	}
	h, err := s.Acquire(ctx, 0)
	if err != nil {
		return err
	}
	c := h.Copy()
	c.Cleared = true
	l := h.Lane(1)
	steps := []func() error{
		func() error { return h.UpdateCopy(ctx, *c, nil) },
		func() error { return l.Within(ctx, func(*mongo.Txn) error { return nil }) },
		func() error { return l.Announce(ctx, at(101, 0), nil) },
		func() error { return l.Complete(ctx, at(101, 0)) },
		func() error {
			return h.Within(ctx, func(txn mongo.Caller) error {
				_, err := txn.Call(ctx, metadata.Update("data", "c", metadata.Statement{
					Filter: metadata.ByID("x"), Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", metadata.ByID("x")) }, Upsert: true,
				}))
				return err
			})
		},
		func() error { return h.lease.Touch(ctx) },
		func() error { _, err := h.Routes(ctx); return err },
		func() error { return s.Remove(ctx) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// TestRefusedOnce: any one command on a link's documents may fail with a transient error,
// executed or not, and every change is made once.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	g.RefuseEach(t, func() error { return bookkeeping(t.Context(), link(t, g)) })
}
