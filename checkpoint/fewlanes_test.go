package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// sorted returns the recorded routes.
func sorted(t *testing.T, h *Link) Rerouting {
	t.Helper()
	return readRoutes(t.Context(), t, h)
}

// TestFewLanes: a collection's record says one thing at a time, whatever it said before. A change
// of the number of lanes removes those of few lanes, and only those.
func TestFewLanes(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 8)
	must.Succeed(t, h.RaiseRouting(ctx, RoutingFew))
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	reroute := func(change Rerouting) {
		t.Helper()
		must.Succeed(t, h.Barrier().Reroute(ctx, at(100, AllOps), positions(h), change))
	}
	is := func(want Rerouting) {
		t.Helper()
		if diff := cmp.Diff(want, readRoutes(ctx, t, h)); diff != "" {
			t.Errorf("recorded is (-want +got)\n%s", diff)
		}
		// A release before few lanes reads the rest of such a record.
		both := func(dst []byte) []byte {
			exists := func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", true) }
			return metadata.AppendDoc(metadata.AppendDoc(metadata.Below("a")(dst), "lanes", exists), "thin", exists)
		}
		if docs := must.Get(metadata.FindAll(ctx, s.patience(), s.once, h.txns.ID(), s.cfg.DB, metadata.Routes, "local", both))(t); len(docs) > 0 {
			t.Errorf("recorded is %s", docs)
		}
	}
	a, b, c, d := oplog.Namespace("x.a"), oplog.Namespace("x.b"), oplog.Namespace("x.c"), oplog.Namespace("x.d")
	reroute(Rerouting{Few: []FewLanes{{a, 2, 7}, {b, 4, 0}, {c, 8, 3}}, Thin: []oplog.Namespace{d}})
	is(Rerouting{Few: []FewLanes{{a, 2, 7}, {b, 4, 0}, {c, 8, 3}}, Thin: []oplog.Namespace{d}})
	reroute(Rerouting{Few: []FewLanes{{a, 4, 1}, {d, 2, 2}}, Thin: []oplog.Namespace{b}, OneLane: []oplog.Namespace{c}})
	is(Rerouting{Few: []FewLanes{{a, 4, 1}, {d, 2, 2}}, Thin: []oplog.Namespace{b}, OneLane: []oplog.Namespace{c}})
	reroute(Rerouting{ByID: []oplog.Namespace{a}})
	is(Rerouting{Few: []FewLanes{{d, 2, 2}}, Thin: []oplog.Namespace{b}, OneLane: []oplog.Namespace{c}})
	must.Succeed(t, h.Resize(ctx, progress(100), 2))
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	is(Rerouting{Thin: []oplog.Namespace{b}, OneLane: []oplog.Namespace{c}})
}

// TestFewLanesVersion: the release before refuses a link with few lanes while its lanes are apart.
// Otherwise it continues, and from then on the records mean one lane, as it reads them, for every
// release, also with another number of lanes.
func TestFewLanesVersion(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 4)
	must.Succeed(t, h.SetRouting(ctx, 1))
	must.Succeed(t, h.RaiseRouting(ctx, RoutingFew))
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	if got := h.State().Routing; got != RoutingFew {
		t.Errorf("the routing is %d", got)
	}
	few := FewLanes{"x.a", 4, 3}
	must.Succeed(t, h.Barrier().Reroute(ctx, at(100, AllOps), positions(h), Rerouting{Few: []FewLanes{few}}))
	flush(ctx, t, h.Lane(0), at(105, 0), "a")
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	e, ok := errors.AsType[*RoutingError](h.SetRouting(ctx, 1))
	if want := (RoutingError{Link: "a", Recorded: 2, Known: 1, From: at(100, AllOps), To: at(105, 0)}); !ok || *e != want {
		t.Errorf("a release with rule 1, lanes apart: %v, want %v", e, &want)
	}
	if got := sorted(t, h); !slices.Equal(got.Few, []FewLanes{few}) {
		t.Errorf("recorded is %+v", got)
	}
	for i := 1; i < 4; i++ {
		flush(ctx, t, h.Lane(i), at(105, 0), fmt.Sprint("b", i))
	}
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	must.Succeed(t, h.SetRouting(ctx, 1))
	for range 2 {
		if diff := cmp.Diff(Rerouting{Void: []oplog.Namespace{"x.a"}}, sorted(t, h)); diff != "" {
			t.Errorf("under rule 1 (-want +got)\n%s", diff)
		}
		h = must.Get(s.Acquire(ctx, h.Term()))(t)
	}
}

// FuzzRoute: a record that no release writes is damaged, and never a lane that does not exist.
func FuzzRoute(f *testing.F) {
	for _, doc := range []bson.D{
		{{Key: "ns", Value: "x.a"}},
		{{Key: "ns", Value: "x.a"}, {Key: "thin", Value: true}},
		{{Key: "ns", Value: "x.a"}, {Key: "lanes", Value: int32(4)}, {Key: "first", Value: int32(7)}},
		{{Key: "ns", Value: "x.a"}, {Key: "lanes", Value: int32(9)}, {Key: "first", Value: int32(0)}},
		{{Key: "ns", Value: "x.a"}, {Key: "lanes", Value: int64(1 << 40)}, {Key: "first", Value: "x"}},
	} {
		raw, _ := bson.Marshal(doc)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bson.Raw(raw).Validate() != nil {
			return
		}
		for _, routing := range []int{1, RoutingFew} {
			var r Rerouting
			h := &Link{lanes: make([]*Lane, 8), state: State{Routing: routing}}
			err := h.readRoute(raw, &r)
			if n := r.Len() + len(r.Void); n != 1 || err == nil && len(r.Few) > 0 && routing < RoutingFew {
				t.Fatalf("%d routes: %+v, %v", n, r, err)
			}
			for _, few := range r.Few {
				if err == nil && (few.Lanes < 1 || few.Lanes > 8 || few.First < 0 || few.First > 7) {
					t.Fatalf("%+v", few)
				}
			}
		}
	})
}

// TestFewLanesDamaged: values that cannot be are reported, with the field.
func TestFewLanesDamaged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lanes, first any
		want         string
	}{
		{int32(0), int32(0), "lanes is missing or not from 1 to 4"},
		{int32(-2), int32(0), "lanes is missing or not from 1 to 4"},
		{int32(5), int32(0), "lanes is missing or not from 1 to 4"},
		{int64(1<<32 + 2), int32(0), "lanes is missing or not from 1 to 4"},
		{"2", int32(0), "lanes is missing or not a number"},
		{nil, int32(0), "lanes is missing or not a number"},
		{int32(2), int32(-1), "first is missing or not from 0 to 3"},
		{int32(2), int32(4), "first is missing or not from 0 to 3"},
		{int32(2), true, "first is missing or not a number"},
		{int32(2), nil, "first is missing or not a number"},
	} {
		ctx := within(t)
		g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 4)
		must.Succeed(t, h.RaiseRouting(ctx, RoutingFew))
		h = must.Get(s.Acquire(ctx, h.Term()))(t)
		doc := bson.D{{Key: "_id", Value: "a/x.a"}, {Key: "ns", Value: "x.a"}}
		if tt.lanes != nil {
			doc = append(doc, bson.E{Key: "lanes", Value: tt.lanes})
		}
		if tt.first != nil {
			doc = append(doc, bson.E{Key: "first", Value: tt.first})
		}
		must.Get(g.Call(ctx, metadata.Majority(metadata.Write("replicator", "insert", metadata.Routes, "documents", must.Get(bson.Marshal(doc))(t)))))(t)
		_, err := h.Routes(ctx)
		if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.Error(), tt.want) {
			t.Errorf("lanes %v, first %v: %v, want %s", tt.lanes, tt.first, err, tt.want)
		}
	}
}
