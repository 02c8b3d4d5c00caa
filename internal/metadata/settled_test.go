package metadata_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// twoViews has what a primary has, and what it knows a majority to have. It counts the reads of both.
type twoViews struct {
	local, majority []int
	asked           []string
}

// Call implements mongo.Caller.
func (v *twoViews) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	level := cmd.Body.Lookup("readConcern", "level").StringValue()
	v.asked = append(v.asked, level)
	list := v.local
	if level == "majority" {
		list = v.majority
	}
	docs := bson.A{}
	for _, n := range list {
		docs = append(docs, bson.D{{Key: "_id", Value: n}})
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "m.c"}, {Key: "firstBatch", Value: docs}}}})
}

// TestSettled: documents that were returned before are asked for once, in any order; new ones are returned once a majority has them.
func TestSettled(t *testing.T) {
	t.Parallel()
	v := &twoViews{local: []int{1, 2}, majority: []int{2, 1}}
	s := &metadata.Settled{Target: v, DB: "m", Collection: "c", Filter: func(dst []byte) []byte { return dst }}
	reads := func(docs int, asked ...string) {
		t.Helper()
		v.asked = nil
		if got := must.Get(s.Read(t.Context()))(t); len(got) != docs || !slices.Equal(v.asked, asked) {
			t.Errorf("%d documents, asked with %s", len(got), v.asked)
		}
	}
	reads(2, "local", "majority")
	reads(2, "local")
	v.majority = []int{1}
	reads(2, "local")
	v.local = []int{1}
	reads(1, "local", "majority")
	v.local = nil
	ctx, stop := context.WithCancelCause(t.Context())
	stop(nil)
	if _, err := s.Read(ctx); err == nil || !strings.Contains(err.Error(), "m.c") {
		t.Errorf("got %v", err)
	}
	v.majority = nil
	reads(0, "local", "majority")
	reads(0, "local")
}

// TestSettledAtFirst: that there is nothing is like any other answer to the first question.
func TestSettledAtFirst(t *testing.T) {
	t.Parallel()
	v := &twoViews{majority: []int{1}}
	s := &metadata.Settled{Target: v, DB: "m", Collection: "c", Filter: func(dst []byte) []byte { return dst }}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(nil)
	if docs, err := s.Read(ctx); err == nil {
		t.Errorf("%d documents, although it is not known that a majority has none", len(docs))
	}
}
