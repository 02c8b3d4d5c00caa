package clone

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestIsPortable: a collection that is read by _id, or not begun, continues with another member; one
// whose places are record ids does not, unless all of it is done.
func TestIsPortable(t *testing.T) {
	t.Parallel()
	rng := func(sp spec, at *place, done bool) progress.Range {
		r := progress.Range{Spec: sp.encode(), Done: done}
		if at != nil {
			r.At = at.encode()
		}
		return r
	}
	whole, split, ids := spec{order: natural}, spec{order: natural, from: 7}, spec{order: byID}
	begun, byIDBegun := &place{order: natural, record: 5}, &place{order: byID, piece: 1}
	for name, c := range map[string]struct {
		ranges []progress.Range
		capped bool
		want   bool
	}{
		"not begun":                   {ranges: []progress.Range{rng(whole, nil, false)}, want: true},
		"begun at a record id":        {ranges: []progress.Range{rng(whole, begun, false)}},
		"continued by _id":            {ranges: []progress.Range{rng(whole, byIDBegun, false)}, want: true},
		"by _id":                      {ranges: []progress.Range{rng(ids, byIDBegun, false), rng(ids, nil, false)}, want: true},
		"divided at record ids":       {ranges: []progress.Range{rng(split, nil, false)}},
		"one of two done":             {ranges: []progress.Range{rng(split, begun, true), rng(split, nil, false)}},
		"all done":                    {ranges: []progress.Range{rng(split, begun, true), rng(split, begun, true)}, want: true},
		"capped":                      {ranges: []progress.Range{rng(whole, nil, false)}, capped: true},
		"capped, and all of it there": {ranges: []progress.Range{rng(whole, begun, true)}, capped: true, want: true},
	} {
		coll := &progress.Collection{Options: must.Marshal(t, bson.D{{Key: "capped", Value: c.capped}})}
		if got, err := IsPortable(coll, c.ranges); err != nil || got != c.want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

// TestPlacesOfAnother: a range that begins or ends at a record id is not read from a member
// that is not the one with these record ids; the whole of a collection is.
func TestPlacesOfAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 10, 100)...)
	w.collection("d.c")
	changed := errors.New("changed")
	c := w.cloner()
	c.cfg.Unchanged = func(context.Context) error { return changed }
	coll := w.listed("d.c")
	for _, x := range []struct {
		sp   spec
		at   place
		want error
	}{
		{spec{order: natural}, place{}, nil},
		{spec{order: natural, from: 3}, place{}, changed},
		{spec{order: natural, to: 3}, place{}, changed},
		{spec{order: natural}, place{order: natural, record: 3}, changed},
		{spec{order: byID}, place{}, nil},
	} {
		rd := newReader(c, coll, x.sp, x.at)
		p, err := rd.next(within(t))
		if !errors.Is(err, x.want) || err == nil && len(p.docs) == 0 {
			t.Errorf("%+v at %+v: %v", x.sp, x.at, err)
		}
		rd.closeCursor(within(t))
	}
}

// TestReadAgain: a collection that is read again from another member is divided by _id from
// then on, so that the next change of the member costs nothing; capped ones, and those
// without an index on _id, have no such order. Only what can be dropped, and must be, is
// dropped.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	index, capped := must.Marshal(t, bson.D{{Key: "v", Value: 2}}), must.Marshal(t, bson.D{{Key: "capped", Value: true}})
	for name, test := range map[string]struct {
		coll                   progress.Collection
		ordered, drop, dropNew bool
	}{
		"plain":       {progress.Collection{NS: "d.c", IDIndex: index}, true, true, false},
		"no index":    {progress.Collection{NS: "d.c"}, false, true, false},
		"capped":      {progress.Collection{NS: "d.c", IDIndex: index, Options: capped}, false, true, true},
		"admin users": {progress.Collection{NS: "admin.system.users", IDIndex: index}, true, false, false},
	} {
		if got := HasOrder(&test.coll); got != test.ordered {
			t.Errorf("%s: has an order: %t", name, got)
		}
		if drop, dropNew := MustDrop(&test.coll, true), MustDrop(&test.coll, false); drop != test.drop || dropNew != test.dropNew {
			t.Errorf("%s: is dropped: %t, before anything is recorded: %t", name, drop, dropNew)
		}
	}
	// It is small, and not divided.
	coll := progress.Collection{NS: "d.c", Docs: 10, Bytes: 1000, IDIndex: index, ByID: true}
	ranges := must.Get(w.cloner().Split(t.Context(), &coll, "d.c", Since{}))(t)
	if sp := must.Get(parseSpec(ranges[0].Spec))(t); len(ranges) != 1 || sp.order != byID {
		t.Fatalf("%d ranges, by %s", len(ranges), sp.order)
	}
	ranges[0].At = (&place{order: byID, piece: 1}).encode()
	if portable, err := IsPortable(&coll, ranges); err != nil || !portable {
		t.Errorf("it would be lost again: %t, %v", portable, err)
	}
}
