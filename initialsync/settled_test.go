package initialsync

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
)

// TestUnsettled: neither a list nor that a collection is gone counts before a majority has
// what the member has shown.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	for _, at := range []int{0, 1} {
		w := newWorld(t)
		w.source = []sourceCollection{{name: "c", docs: 10, goneFirst: true}}
		c := w.start(Config{}, 1)
		rolledBack, asked := errors.New("rolled back"), 0
		c.settled = func(context.Context) error {
			asked++
			if asked == at+1 {
				return rolledBack
			}
			return nil
		}
		if err := c.Run(t.Context()); !errors.Is(err, rolledBack) {
			t.Errorf("at %d: %v", at, err)
		}
		docs, _, err := w.Copies(t.Context())
		if err != nil || at == 0 && len(docs) > 0 || slices.ContainsFunc(docs, func(d progress.Collection) bool { return d.Gone }) {
			t.Errorf("at %d: %+v, %v", at, docs, err)
		}
	}
}

// TestUnsettledDuplicate: two collections with the same name at Begin make a copy void only
// if a majority has the listed catalog.
func TestUnsettledDuplicate(t *testing.T) {
	t.Parallel()
	rolledBack := errors.New("rolled back")
	for _, failed := range []error{nil, rolledBack} {
		w := newWorld(t)
		c := w.start(Config{}, 1)
		c.take = func(context.Context) (*inventory.Inventory, error) { return nil, &inventory.DuplicateError{} }
		c.settled = func(context.Context) error { return failed }
		if err := c.Run(t.Context()); err == nil || Void(err) != (failed == nil) || failed != nil && !errors.Is(err, failed) {
			t.Errorf("settled: %v; the copy: %v", failed, err)
		}
	}
}

// TestAgain: a collection of which a part was copied from another member is dropped and
// created before it is copied again.
func TestAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.source = []sourceCollection{{name: "c", docs: 10}}
	w.link.Cleared, w.link.Listed = true, true
	w.target["db.c"] = &targetCollection{kind: "collection", docs: map[string]int{"old": 1}}
	docs := progress.Collection{UUID: uuidOf("c"), NS: "db.c", State: progress.Planned, Again: true, Docs: 10}
	if err := w.AddCollections(t.Context(), []progress.Collection{docs}); err != nil {
		t.Fatal(err)
	}
	if err := w.start(Config{}, 1).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, kept := w.target["db.c"].docs["old"]; kept || len(w.target["db.c"].docs) != 10 {
		t.Errorf("the target has %v", w.target["db.c"].docs)
	}
	if now, _, err := w.Copies(t.Context()); err != nil || now[0].Again || now[0].State != progress.Done {
		t.Errorf("%+v, %v", now, err)
	}
}
