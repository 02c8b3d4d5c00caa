package progress

import (
	"context"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/mongosim"
)

// bookkeeping makes every kind of record of a copy once.
func bookkeeping(ctx context.Context, s *Store) error {
	if err := s.Create(ctx, copyState(2)); err != nil {
		return err
	}
	link, err := s.Acquire(ctx, 0)
	if err != nil {
		return err
	}
	h := Of(link)
	colls := []Collection{collection(1), collection(2)}
	if err := h.AddCollections(ctx, colls); err != nil {
		return err
	}
	if err := h.Lane(1).SaveCollection(ctx, &colls[0], []Range{part(1, 0)}); err != nil {
		return err
	}
	if err := h.DropCopies(ctx, 1); err != nil {
		return err
	}
	colls, ranges, err := h.Copies(ctx)
	if err == nil && (len(colls) != 2 || len(ranges) != 1) {
		err = fmt.Errorf("%d collections, %d ranges", len(colls), len(ranges))
	}
	if err != nil {
		return err
	}
	return s.Remove(ctx)
}

// TestRefusedOnce: any single command on the documents of a copy may be refused
// transiently, carried out or not, and everything is recorded once.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	g.RefuseEach(t, func() error { return bookkeeping(t.Context(), link(t, g)) })
}
