package standing

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// put sets a field of the document of d.b.
func (b *book) put(field string, value any) {
	b.t.Helper()
	body := must.Get(bson.Marshal(bson.D{{Key: "update", Value: "verified"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: b.id("d.b")}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}}},
	}}}}))(b.t)
	reply := must.Get(b.Target.Call(b.t.Context(), mongo.Command{DB: b.DB, Body: body}))(b.t)
	if n, _ := reply.Lookup("n").AsInt64OK(); n != 1 {
		b.t.Fatalf("set %s: %s", field, reply)
	}
}

// TestDamagedPass: a pass that has been damaged, whatever has come to be in its place, neither keeps a round from beginning, nor a
// collection from being replaced, nor differences from being stored.
func TestDamagedPass(t *testing.T) {
	t.Parallel()
	made := bson.NewObjectID()
	fields := func(round, told any) bson.D {
		return bson.D{{Key: "made", Value: made}, {Key: "round", Value: round}, {Key: "done", Value: bson.D{}}, {Key: "found", Value: bson.A{}}, {Key: "more", Value: int64(0)}, {Key: "told", Value: told}}
	}
	found := bson.A{bson.D{{Key: "kind", Value: "missing"}, {Key: "id", Value: "9"}}}
	for name, c := range map[string]struct {
		field string
		value any
	}{
		"an array of nothing":        {"pass", bson.A{}},
		"an array of numbers":        {"pass", bson.A{1}},
		"an array of passes":         {"pass", bson.A{fields(int64(2), found)}},
		"an array without told":      {"pass", bson.A{fields(int64(2), nil)}},
		"an array of later ones":     {"pass", bson.A{fields(int64(7), found), 1}},
		"a number":                   {"pass", 5},
		"a text":                     {"pass", "x"},
		"null":                       {"pass", nil},
		"a round that is a text":     {"pass", fields("x", found)},
		"told is null":               {"pass", fields(int64(2), nil)},
		"told is a document":         {"pass", fields(int64(2), bson.D{{Key: "kind", Value: "missing"}})},
		"told is a text":             {"pass", fields(int64(2), "x")},
		"an array of results":        {"is", bson.A{bson.D{{Key: "at", Value: bson.DateTime(5)}}}},
		"more than told is a text":   {"pass", append(fields(int64(2), found), bson.E{Key: "toldMore", Value: "x"})},
		"found is null":              {"pass.found", nil},
		"told is null and all else":  {"pass.told", nil},
		"the ranges that are done":   {"pass.done", "x"},
		"told is an array of others": {"pass", fields(int64(2), bson.A{1, nil})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a", "d.b")
			round := s.again(s.Store, 110, all) // the second
			damage := func() {
				must.Succeed(t, s.SavePass(t.Context(), "d.b", pass(&round)))
				s.put(c.field, c.value)
			}
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			damage()
			told := func(what string) {
				t.Helper()
				if c.field == "pass.done" { // The collection is compared again, and this counts until then.
					if st := must.Get(Read(ctx, s.Target, s.DB, s.Link))(t); st.Differences == 0 {
						t.Errorf("%s: %+v", what, st)
					}
					return
				}
				if p := must.Get(s.Pass(ctx, "d.b"))(t); c.field != "is" && (p == nil || len(p.Told) == 0) {
					t.Errorf("%s: %+v", what, p)
				}
			}
			must.Succeed(t, s.SaveTold(ctx, "d.b", id("d.b", 1), round.N, missing("1"), 0))
			if name != "more than told is a text" && name != "told is an array of others" { // which the next round replaces
				told("a difference")
			}
			damage()
			must.Succeed(t, s.SavePass(ctx, "d.b", pass(&round, missing("1")...)))
			damage()
			if _, _, err := beginAs(ctx, s.Store, all, true, cutAt(120, s.future+120), time.Unix(5000, 0)); err != nil {
				t.Errorf("the round does not go on: %v", err)
			}
			must.Succeed(t, s.SaveTold(ctx, "d.b", id("d.b", 1), round.N, missing("1"), 0))
			told("after the round went on")
			damage()
			round = s.again(s.Store, 130, all)
			damage()
			l := all[1]
			l.Source, l.At = id("d.b", 2), bson.Timestamp{T: s.future + 140, I: 1}
			if _, err := s.Replace(ctx, l, round.N); err != nil {
				t.Errorf("it cannot be replaced: %v", err)
			}
			if docs := must.Get(loaded(ctx, s.Store))(t); !docs["d.b"].Source.Equal(uuid(l.Source)) || docs["d.b"].Pass != nil {
				t.Errorf("it was not replaced: %+v", docs["d.b"])
			}
		})
	}
}

// TestDamagedMark: a mark that has been damaged, whatever has come to be in its place, keeps a collection neither from being verified once it is
// compared again, nor from being marked.
func TestDamagedMark(t *testing.T) {
	t.Parallel()
	far := bson.Timestamp{T: 1 << 31, I: 1}
	mark := func(target, why, at any) bson.D {
		return bson.D{{Key: "target", Value: target}, {Key: "why", Value: why}, {Key: "at", Value: at}}
	}
	for name, c := range map[string]struct {
		field string
		value any
	}{
		"a boolean":                {"mark", true},
		"a date":                   {"mark", bson.DateTime(5)},
		"a number":                 {"mark", 5},
		"an array of nothing":      {"mark", bson.A{}},
		"an array of marks":        {"mark", bson.A{mark(far, "planted", bson.DateTime(5))}},
		"a time that is a pattern": {"mark", mark(bson.Regex{Pattern: "a"}, "planted", bson.DateTime(5))},
		"a time that is an array":  {"mark", mark(bson.A{far}, "planted", bson.DateTime(5))},
		"a reason that is none":    {"mark", mark(far, 5, bson.DateTime(5))},
		"a date that is a text":    {"mark", mark(far, "planted", "x")},
		"null":                     {"mark", nil},
		"it differed at a pattern": {"differed", bson.Regex{Pattern: "a"}},
		"it differed at a date":    {"differed", bson.DateTime(5)},
		"it differed at times":     {"differed", bson.A{far}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := begun(t)
			all := list("d.a", "d.b")
			damage := func() { s.put(c.field, c.value) }
			compared := func(source uint32) Standing {
				round := s.again(s.Store, source, all)
				s.save(&round, "d.a", source+5)
				s.save(&round, "d.b", source+5)
				s.end(&round)
				return read(t, s.Store)
			}
			damage()
			if st := compared(110); st.AsOf == nil || st.Verified != 2 {
				t.Errorf("compared again: %+v", st)
			}
			damage()
			must.Succeed(t, s.Mark(t.Context(), WhyDiffers+"planted", "d.b"))
			if d := must.Get(loaded(t.Context(), s.Store))(t)["d.b"]; d.Mark == nil || d.Mark.Why != WhyDiffers+"planted" || d.Differed == nil || d.Mark.Target == far {
				t.Errorf("marked: %+v", d)
			}
			damage()
			l := all[1]
			l.Source, l.At = id("d.b", 2), bson.Timestamp{T: s.future + 140, I: 1}
			must.Get(s.Replace(t.Context(), l, 2))(t)
			if d := must.Get(loaded(t.Context(), s.Store))(t)["d.b"]; !d.Source.Equal(uuid(l.Source)) {
				t.Errorf("replaced: %+v", d)
			}
			damage()
			must.Succeed(t, s.SaveTold(t.Context(), "d.b", l.Source, 1, missing("1"), 0)) // which a later round has overtaken
			if d := must.Get(loaded(t.Context(), s.Store))(t)["d.b"]; !d.marked() {
				t.Errorf("overtaken: %+v", d)
			}
		})
	}
}
