package progress

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
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
	ctx := t.Context()
	for _, e := range []*servererr.Error{
		servererr.New(servererr.Interrupted, "operation was interrupted"),
		servererr.New(servererr.NoSuchTransaction, "it does not exist").WithLabels(servererr.LabelTransient),
		servererr.New(servererr.TemporarilyUnavailable, "no room"),
	} {
		for _, done := range []bool{false, true} {
			met := true
			for n := int64(1); met; n++ {
				var calls atomic.Int64
				met = false
				what := ""
				g.Intercept(func(cmd mongo.Command) (error, bool) {
					if calls.Add(1) != n {
						return nil, false
					}
					met, what = true, simcaller.Name(cmd)
					if what == "commitTransaction" && (done || len(e.Labels) == 0) {
						return nil, false // its outcome would be unknown
					}
					return e, done
				})
				if err := bookkeeping(ctx, link(t, g)); err != nil {
					t.Fatalf("command %d, %s, refused with %s, done: %t: %v", n, what, e.Code, done, err)
				}
			}
		}
	}
}
