package update_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

func delta(tb testing.TB, json string) *update.ObjectDiff {
	tb.Helper()
	d, err := update.ParseDelta(parse(tb, json))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func TestCompose(t *testing.T) {
	for _, tc := range []struct{ name, a, b, want string }{
		{"fields apart", `{"u":{"a":1}}`, `{"u":{"b":2}}`, `{"u":{"a":1,"b":2}}`},
		{"one field", `{"u":{"a":1}}`, `{"u":{"a":2}}`, `{"u":{"a":2}}`},
		{"removed", `{"u":{"a":1},"i":{"x":1}}`, `{"d":{"a":false,"x":false}}`, `{"d":{"a":false,"x":false}}`},
		{"inserted, then changed", `{"i":{"x":1,"y":1}}`, `{"u":{"x":2}}`, `{"i":{"x":2,"y":1}}`},
		{"inserted again", `{"i":{"x":1,"y":1}}`, `{"i":{"x":2}}`, `{"i":{"y":1,"x":2}}`},
		{"moved to the end", `{"u":{"a":1}}`, `{"i":{"a":1}}`, `{"i":{"a":1}}`},
		{"removed and inserted", `{"d":{"a":false}}`, `{"i":{"a":1}}`, `{"i":{"a":1}}`},
		{"inside what changes", `{"sa":{"u":{"x":1}}}`, `{"sa":{"d":{"x":false},"u":{"y":2}}}`, `{"sa":{"d":{"x":false},"u":{"y":2}}}`},
		{"inside what is new", `{"u":{"a":{"x":1,"z":3}}}`, `{"sa":{"u":{"x":2},"i":{"y":3}}}`, `{"u":{"a":{"x":2,"z":3,"y":3}}}`},
		{"inside an array that is new", `{"i":{"a":[1,2]}}`, `{"sa":{"a":true,"u2":3}}`, `{"i":{"a":[1,2,3]}}`},
		{"over what changes inside", `{"sa":{"u":{"x":1}}}`, `{"u":{"a":1}}`, `{"u":{"a":1}}`},
		{"elements", `{"sa":{"a":true,"u3":3,"s5":{"u":{"x":1}}}}`, `{"sa":{"a":true,"u0":0,"u3":4,"s5":{"u":{"y":1}}}}`, `{"sa":{"a":true,"u0":0,"u3":4,"s5":{"u":{"x":1,"y":1}}}}`},
		{"inside a new element", `{"sa":{"a":true,"u3":{"x":1}}}`, `{"sa":{"a":true,"s3":{"u":{"x":2}}}}`, `{"sa":{"a":true,"u3":{"x":2}}}`},
		{"cut", `{"sa":{"a":true,"u1":1}}`, `{"sa":{"a":true,"l":3}}`, `{"sa":{"a":true,"l":3,"u1":1}}`},
		{"cut what was set", `{"sa":{"a":true,"s7":{"u":{"x":1}}}}`, `{"sa":{"a":true,"l":3}}`, `{"sa":{"a":true,"l":3}}`},
		{"cut, then longer", `{"sa":{"a":true,"l":1}}`, `{"sa":{"a":true,"u1":1,"u3":3}}`, `{"sa":{"a":true,"l":4,"u1":1,"u2":null,"u3":3}}`},
		{"cut again", `{"sa":{"a":true,"l":4,"u1":1,"u3":3}}`, `{"sa":{"a":true,"l":2}}`, `{"sa":{"a":true,"l":2,"u1":1}}`},

		{"_id moves", `{"i":{"new":0,"_id":1,"a":2}}`, `{"u":{"a":3}}`, `{"u":{"_id":1},"i":{"new":0,"a":3}}`},
		{"_id moves again", `{"i":{"new":0,"_id":1}}`, `{"i":{"newer":0,"_id":1,"new":0}}`, `{"u":{"_id":1},"i":{"newer":0,"new":0}}`},
		{"_id moves, and gets another type", `{"u":{"a":1},"i":{"_id":1}}`, `{"u":{"_id":1.0}}`, `{"u":{"a":1,"_id":1.0}}`},
		{"_id gets another type, and is left out", `{"u":{"_id":1.0}}`, `{"d":{"_id":false,"a":false}}`, `{"d":{"a":false},"u":{"_id":1.0}}`},
		{"_id is left out, and gets another type", `{"d":{"_id":false,"a":false}}`, `{"u":{"_id":1.0}}`, `{"d":{"a":false},"u":{"_id":1.0}}`},
		{"inside _id, then moved", `{"s_id":{"u":{"x":1.0}}}`, `{"i":{"b":1,"_id":{"x":1}}}`, `{"u":{"_id":{"x":1}},"i":{"b":1}}`},
		{"_id is left out twice", `{"d":{"_id":false}}`, `{"d":{"_id":false}}`, ``},
		{"maybe padded, then cut", `{"sa":{"a":true,"u5":1}}`, `{"sa":{"a":true,"l":5}}`, ``},
		{"binary data", `{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}`, `{"u":{"a":1}}`, ``},
		{"b changes what a removed", `{"d":{"a":false}}`, `{"u":{"a":1}}`, ``},
		{"b goes into what a removed", `{"d":{"a":false}}`, `{"sa":{"u":{"b":1}}}`, ``},
		{"b goes into a number", `{"u":{"a":1}}`, `{"sa":{"u":{"b":1}}}`, ``},
		{"b goes into an array that is a document", `{"sa":{"u":{"b":1}}}`, `{"sa":{"a":true,"u1":1}}`, ``},
		{"b goes after a cut", `{"sa":{"a":true,"l":1}}`, `{"sa":{"a":true,"s1":{"u":{"x":1}}}}`, ``},
		{"too many nulls", `{"sa":{"a":true,"l":1}}`, `{"sa":{"a":true,"u5000":1}}`, ``},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, errA := update.ParseDelta(parse(t, tc.a))
			b, errB := update.ParseDelta(parse(t, tc.b))
			if errA != nil || errB != nil {
				if tc.want != "" {
					t.Fatal(errA, errB)
				}
				return
			}
			got, ok := new(update.Arena).Compose(a, b)
			if ok != (tc.want != "") {
				t.Fatalf("composed: %v", ok)
			}
			if ok {
				same(t, got.AppendDiff(nil), parse(t, tc.want))
			}
		})
	}
}

func TestMoves(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{`{"u":{"a":1}}`, `{"i":{"a":1}}`, true},
		{`{"d":{"a":false}}`, `{"i":{"a":1}}`, true},
		{`{"sa":{"u":{"x":1}}}`, `{"i":{"a":1}}`, true},
		{`{"i":{"a":1}}`, `{"i":{"a":1}}`, false},
		{`{"u":{"a":1}}`, `{"i":{"b":1}}`, false},
		{`{"sa":{"a":true,"s0":{"u":{"a":1}}}}`, `{"sa":{"a":true,"s0":{"i":{"a":1}}}}`, true},
	} {
		if d, ok := new(update.Arena).Compose(delta(t, tc.a), delta(t, tc.b)); !ok || d.Moves() != tc.want {
			t.Errorf("%s then %s: composed %v, moves %v", tc.a, tc.b, ok, d.Moves())
		}
	}
}

// step draws a delta that a server could log next for doc: computed from two
// documents, or logged by operators.
func step(rt *rapid.T, doc bson.Raw) (diff bson.Raw, ok bool) {
	if rapid.Bool().Draw(rt, "operators") {
		return bsongen.OperatorDelta(rt, doc), true
	}
	diff, ok = update.Diff(doc, bsongen.Made(rt, doc), 0)
	return diff, ok && len(diff) > rawbson.MinSize
}

// history draws a document and deltas that a server could log for it. post is the document
// after all of them.
func history(rt *rapid.T) (pre, post bson.Raw, deltas []*update.ObjectDiff) {
	pre = bsongen.Document(rt)
	if repeats(pre) {
		rt.Skip("a pipeline cannot keep a field that is there twice")
	}
	pre = large(pre)
	post = pre
	for range rapid.IntRange(2, 5).Draw(rt, "steps") {
		diff, ok := step(rt, post)
		if !ok {
			break
		}
		d, err := update.ParseDelta(diff)
		if err != nil {
			rt.Fatalf("%s: %v", diff, err)
		}
		if post, err = d.Apply(post); err != nil {
			rt.Fatalf("%s: %v", diff, err)
		}
		if repeats(post) {
			rt.Skip("a pipeline cannot keep a field that is there twice")
		}
		deltas = append(deltas, d)
	}
	return pre, post, deltas
}

// A sequence of deltas, composed in a random order, has the same effect as applying
// them one after the other, applied and compiled.
func TestComposeHistories(t *testing.T) {
	composed, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		pre, post, deltas := history(rt)
		for len(deltas) > 1 {
			i := rapid.IntRange(0, len(deltas)-2).Draw(rt, "at")
			a, b := deltas[i], deltas[i+1]
			beforeA, beforeB := string(a.AppendDiff(nil)), string(b.AppendDiff(nil))
			c, ok := new(update.Arena).Compose(a, b)
			if string(a.AppendDiff(nil)) != beforeA || string(b.AppendDiff(nil)) != beforeB {
				rt.Fatal("the arguments were changed")
			}
			if !ok {
				refused++
				return
			}
			composed++
			deltas = append(append(deltas[:i:i], c), deltas[i+2:]...)
		}
		if len(deltas) == 0 {
			return
		}
		diff := bson.Raw(deltas[0].AppendDiff(nil))
		again, err := update.ParseDelta(diff)
		if err != nil || string(again.AppendDiff(nil)) != string(diff) {
			rt.Fatalf("%s is not read again as it was: %v", diff, err)
		}
		got, err := deltas[0].Apply(pre)
		if err != nil || string(got) != string(post) {
			rt.Fatalf("%v\ncomposed %s\non       %s\ngives    %s\nwant     %s", err, diff, pre, got, post)
		}
		compiles(rt, pre, diff, preImage)
		if deltas[0].AddsTo(pre) {
			compiles(rt, pre, diff, newFields)
		} else {
			return
		}
		if deltas[0].Moves() {
			// A field was inserted, deleted and inserted again: GuaranteeNewFields would
			// have been true. Not using it costs only a little speed.
			rt.Log("moves, but adds")
		}
	})
	if composed < 20 {
		t.Errorf("%d composed, %d refused", composed, refused)
	}
}

func TestAppendModifiers(t *testing.T) {
	for _, tc := range []struct {
		diff, want string
		guarantee  update.Guarantee
	}{
		{`{"d":{"b":false},"u":{"a":1},"sc":{"u":{"x":1,"y":2},"sd":{"u":{"e":1}}}}`, `{"$set":{"a":1,"c.x":1,"c.y":2,"c.d.e":1},"$unset":{"b":""}}`, update.GuaranteePreImage},
		{`{"sa":{"a":true,"s0":{"a":true,"u11":1},"u12":{"x":1}}}`, `{"$set":{"a.0.11":1,"a.12":{"x":1}}}`, update.GuaranteePreImage},
		{`{"i":{"a":1}}`, `{"$set":{"a":1}}`, update.GuaranteeNewFields},
		{`{"i":{"a":1}}`, ``, update.GuaranteePreImage},
		{`{"i":{"_id":1}}`, ``, update.GuaranteeNewFields},
		{`{"u":{"_id":1}}`, ``, update.GuaranteePreImage},
		{`{"d":{"_id":false}}`, ``, update.GuaranteePreImage},
		{`{"sa":{"u":{"x":1}}}`, ``, update.GuaranteeNone},
		{`{"u":{"a":{"$x":1}}}`, ``, update.GuaranteePreImage},
		{`{"d":{}}`, ``, update.GuaranteePreImage},
		{`{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}`, ``, update.GuaranteePreImage},
	} {
		got, ok := new(update.Arena).AppendModifiers([]byte("x"), delta(t, tc.diff), tc.guarantee)
		if ok != (tc.want != "") || got[0] != 'x' {
			t.Errorf("%s: %v, %q", tc.diff, ok, got)
			continue
		}
		if ok {
			same(t, got[1:], parse(t, tc.want))
		} else if len(got) != 1 {
			t.Errorf("%s: %q is left behind", tc.diff, got)
		}
	}
}

func TestAppendClientModifiers(t *testing.T) {
	for _, tc := range []struct {
		o, want string
		exact   bool
	}{
		{`{"$v":1,"$set":{"a":1,"b.c.0":2},"$unset":{"d":true}}`, `{"$set":{"a":1,"b.c.0":2},"$unset":{"d":true}}`, true},
		{`{"$v":1,"$set":{"a":1},"$unset":{"d":true}}`, `{"$set":{"a":1},"$unset":{"d":true}}`, false},
		{`{"$set":{"a":1},"$unset":{}}`, `{"$set":{"a":1}}`, false},
		{`{"$set":{"a.b":1}}`, ``, false},
		{`{"$set":{"$x":1}}`, ``, true},
		{`{"$set":{"a":{"b":[{"$x":1}]}}}`, ``, true},
		{`{"$set":{"a":{"$timestamp":{"t":0,"i":0}}}}`, ``, true},
		{`{"$set":{}}`, ``, true},
	} {
		got, ok, err := update.AppendClientModifiers(nil, parse(t, tc.o), tc.exact)
		if err != nil || ok != (tc.want != "") {
			t.Errorf("%s: %v, %v", tc.o, ok, err)
			continue
		}
		if ok {
			same(t, got, parse(t, tc.want))
		}
	}
	if _, _, err := update.AppendClientModifiers(nil, parse(t, `{"$push":{"a":1}}`), true); err == nil {
		t.Error("an operator that is never logged is taken")
	}
}

// Accepted modifiers have the same effect on any document as the entry, if no path
// goes below the top level.
func TestClientModifiersOnAnyDocument(t *testing.T) {
	taken := 0
	rapid.Check(t, func(rt *rapid.T) {
		doc := bsongen.Document(rt)
		var set, unset bson.D
		for range rapid.IntRange(0, 4).Draw(rt, "set") {
			set = append(set, bson.E{Key: bsongen.Name(rt), Value: bsongen.Value(rt, 3)})
		}
		for range rapid.IntRange(0, 2).Draw(rt, "unset") {
			unset = append(unset, bson.E{Key: bsongen.Name(rt), Value: true})
		}
		o, err := bson.Marshal(bson.D{{Key: "$v", Value: 1}, {Key: "$set", Value: set}, {Key: "$unset", Value: unset}})
		if err != nil {
			rt.Fatal(err)
		}
		want, err := update.Apply(doc, o)
		if err != nil {
			return
		}
		u, ok, err := update.AppendClientModifiers(nil, o, false)
		if err != nil {
			rt.Fatal(err)
		}
		if !ok {
			return
		}
		taken++
		got, err := serverupdate.Apply(doc, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: u})
		if err != nil || string(got) != string(want) {
			rt.Fatalf("%v\nupdate %s\non     %s\ngives  %s\nwant   %s", err, bson.Raw(u), doc, got, want)
		}
	})
	if taken == 0 {
		t.Error("none was taken")
	}
}

func TestArena(t *testing.T) {
	var arena update.Arena
	rapid.Check(t, func(rt *rapid.T) {
		arena.Reset()
		var want []string
		var got []*update.ObjectDiff
		for range rapid.IntRange(1, 200).Draw(rt, "deltas") {
			diff := bsongen.BinaryDelta(rt)
			d, err := update.ParseDelta(diff)
			again, errAgain := arena.Parse(diff)
			if (err == nil) != (errAgain == nil) {
				rt.Fatalf("%v and %v", err, errAgain)
			}
			if err == nil {
				want, got = append(want, string(d.AppendDiff(nil))), append(got, again)
			}
		}
		for i := range got {
			if string(got[i].AppendDiff(nil)) != want[i] {
				rt.Fatalf("delta %d is %s, want %s", i, bson.Raw(got[i].AppendDiff(nil)), bson.Raw(want[i]))
			}
		}
	})
	diff := parse(t, `{"d":{"x":false},"u":{"a":1},"i":{"b":2},"sc":{"a":true,"l":3,"s1":{"u":{"x":1}}}}`)
	if n := testing.AllocsPerRun(100, func() {
		arena.Reset()
		if _, err := arena.Parse(diff); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// Deltas that do not fit one another compose to a valid delta, or not at all.
func FuzzCompose(f *testing.F) {
	for _, diff := range []string{
		`{"d":{"a":false},"u":{"b":{"x":1}},"i":{"c":[1]},"sd":{"a":true,"l":1,"u0":1}}`,
		`{"d":{"b":false},"u":{"a":1},"i":{"d":1},"sc":{"a":true,"s1":{"i":{"a":1}}}}`,
		`{"sd":{"a":true,"u3":1},"sb":{"i":{"y":1}}}`,
		`{"i":{"new":0,"_id":1,"c":1}}`, `{"d":{"_id":false}}`,
		`{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}`,
	} {
		f.Add([]byte(parse(f, diff)), []byte(parse(f, `{"u":{"c":2},"sd":{"a":true,"u2":1}}`)))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		a, errA := update.ParseDelta(first)
		b, errB := update.ParseDelta(second)
		if errA != nil || errB != nil {
			return
		}
		c, ok := new(update.Arena).Compose(a, b)
		if string(a.AppendDiff(nil)) != string(first) && len(a.Deletes) == 0 && !a.HasBinary() {
			t.Fatalf("%s is changed to %s", bson.Raw(first), bson.Raw(a.AppendDiff(nil)))
		}
		if !ok {
			return
		}
		diff := bson.Raw(c.AppendDiff(nil))
		if _, err := update.ParseDelta(diff); err != nil && rawbson.Validate(diff) == nil && len(diff) > rawbson.MinSize {
			t.Fatalf("%s then %s gives %s: %v", bson.Raw(first), bson.Raw(second), diff, err)
		}
	})
}
