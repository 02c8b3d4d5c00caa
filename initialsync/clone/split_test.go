package clone

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestNaturalSpecs: whatever the sampled records, each range begins where the previous
// one ends.
func TestNaturalSpecs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Int64Range(1, 200), 0, 100).Draw(t, "records")
		n := rapid.IntRange(1, 20).Draw(t, "n")
		all := slices.Clone(records)
		list := naturalSpecs(records, n)
		if len(list) > n || len(list) < 1 {
			t.Fatalf("%d ranges of %d", len(list), n)
		}
		from := int64(0)
		for i := range list {
			s := must.Get(parseSpec(list[i].encode()))(t)
			last := i == len(list)-1
			if s.from != from || last != (s.to == 0) || !last && s.to <= s.from {
				t.Fatalf("range %d of %d behind %d: %+v", i, len(list), from, s)
			}
			if !slices.IsSorted(s.before) || len(s.before) > 0 && s.before[len(s.before)-1] >= s.from {
				t.Fatalf("it falls back on %v", s.before)
			}
			for _, r := range append(s.before, s.from, s.to) {
				if r != 0 && !slices.Contains(all, r) {
					t.Fatalf("%d was not sampled", r)
				}
			}
			from = s.to
		}
	})
}

// TestSplitAsksLittle: small collections, and empty capped ones, are split without
// requests.
func TestSplitAsksLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.source.intercept(func(cmd mongo.Command) (error, bool) {
		t.Errorf("%s was sent", name(cmd))
		return nil, false
	}, nil)
	for _, coll := range []progress.Collection{
		{NS: "d.c", Docs: 1000, Bytes: 600 << 20},
		{NS: "d.c", Docs: 40, Bytes: 2 << 30}, // too few for samples
		{NS: "d.c", Docs: 1 << 30, Bytes: 1 << 40, Options: must.Marshal(t, bson.D{{Key: "capped", Value: true}})},
	} {
		if ranges := must.Get(w.cloner().Split(t.Context(), &coll, "d.c", Since{}))(t); len(ranges) != 1 {
			t.Errorf("%+v: %d ranges", coll, len(ranges))
		}
	}
}
