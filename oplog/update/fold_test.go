package update_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

// folding compares the result of a Folder with that of Compose for a run of deltas.
type folding struct {
	folder update.Folder
	arena  update.Arena
	// taken and left count the deltas that a run accepted and refused.
	taken, left int
}

func (f *folding) check(rt *rapid.T, deltas []*update.ObjectDiff) {
	f.arena.Reset()
	var run, before []bson.Raw
	for _, d := range deltas {
		before = append(before, d.AppendDiff(nil))
	}
	var want *update.ObjectDiff
	end := func() {
		got := f.folder.Diff(&f.arena)
		gotDiff, wantDiff := bson.Raw(got.AppendDiff(nil)), bson.Raw(want.AppendDiff(nil))
		if string(gotDiff) != string(wantDiff) || got.Moves() != want.Moves() {
			rt.Fatalf("of %s\nfolded   %s, moves %v\ncomposed %s, moves %v", run, gotDiff, got.Moves(), wantDiff, want.Moves())
		}
		if doc := bsongen.Document(rt); len(run) > 1 {
			// Lookups of fields work too.
			gotDoc, gotErr := got.Apply(doc)
			wantDoc, wantErr := want.Apply(doc)
			if string(gotDoc) != string(wantDoc) || (gotErr == nil) != (wantErr == nil) {
				rt.Fatalf("of %s\non  %s\ngot  %s, %v\nwant %s, %v", run, doc, gotDoc, gotErr, wantDoc, wantErr)
			}
		}
		run, want = nil, nil
	}
	for i, d := range deltas {
		switch {
		case f.folder.Add(d):
		case want == nil:
			rt.Fatal("the first is not taken")
		default:
			f.left++
			end()
			f.folder.Add(d)
		}
		run = append(run, before[i])
		if want == nil {
			want = d
			continue
		}
		f.taken++
		next, ok := new(update.Arena).Compose(want, d)
		if !ok {
			rt.Fatalf("of %s the last is taken, and Compose refuses it", run)
		}
		again, ok := f.arena.Compose(want, d)
		if !ok || string(again.AppendDiff(nil)) != string(next.AppendDiff(nil)) || again.Moves() != next.Moves() {
			rt.Fatalf("of %s\nin the arena %s\nelsewhere    %s", run, bson.Raw(again.AppendDiff(nil)), bson.Raw(next.AppendDiff(nil)))
		}
		want = next
	}
	end()
	for i, d := range deltas {
		if string(d.AppendDiff(nil)) != string(before[i]) {
			rt.Fatalf("%s was changed to %s", before[i], bson.Raw(d.AppendDiff(nil)))
		}
	}
}

func (f *folding) covered(t *testing.T) {
	t.Helper()
	if f.taken < 50 || f.left < 10 {
		t.Errorf("%d taken, %d left", f.taken, f.left)
	}
}

func parsed(rt *rapid.T, diff bson.Raw) *update.ObjectDiff {
	d, err := update.ParseDelta(diff)
	if err != nil {
		rt.Fatalf("%s: %v", diff, err)
	}
	return d
}

// Deltas that a server logs one after the other.
func TestFoldHistories(t *testing.T) {
	var f folding
	rapid.Check(t, func(rt *rapid.T) {
		doc := large(bsongen.Document(rt))
		var deltas []*update.ObjectDiff
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			diff, ok := step(rt, doc)
			if !ok {
				break
			}
			d := parsed(rt, diff)
			var err error
			if doc, err = d.Apply(doc); err != nil {
				rt.Fatal(err)
			}
			deltas = append(deltas, d)
		}
		if len(deltas) > 0 {
			f.check(rt, deltas)
		}
	})
	f.covered(t)
}

// Deltas of any shape, that need not fit one another.
func TestFoldAnything(t *testing.T) {
	var f folding
	rapid.Check(t, func(rt *rapid.T) {
		var deltas []*update.ObjectDiff
		for range rapid.IntRange(1, 8).Draw(rt, "deltas") {
			diff := bsongen.Delta(rt)
			switch rapid.IntRange(0, 9).Draw(rt, "shape") {
			case 0:
				diff = bsongen.BinaryDelta(rt)
			case 1, 2, 3, 4, 5, 6:
				diff = fewFields(rt, rapid.IntRange(0, 2).Draw(rt, "depth"))
			}
			deltas = append(deltas, parsed(rt, diff))
		}
		f.check(rt, deltas)
	})
	f.covered(t)
}

// fewFields draws a small delta with names from a small set, so that each section
// meets each.
func fewFields(rt *rapid.T, depth int) bson.Raw {
	var sections [4]bson.D
	letters := "duis"
	// Sometimes there are so many that they are found by their hashes.
	names := "abcde"
	if rapid.IntRange(0, 3).Draw(rt, "many") == 0 {
		names = "abcdefghijklmnopqrstuvwxyz"
	}
	least := len(names) / 8
	for i, name := range names {
		if i >= least && rapid.IntRange(0, 2).Draw(rt, "left alone") > 0 {
			continue
		}
		last := 3
		if depth == 0 {
			last = 2
		}
		s := rapid.IntRange(0, last).Draw(rt, "section")
		var v any = rapid.IntRange(0, 9).Draw(rt, "value")
		switch {
		case s == 0:
			v = false
		case s == 3 && rapid.Bool().Draw(rt, "array"):
			v = fewElements(rt)
		case s == 3:
			v = fewFields(rt, depth-1)
		}
		sections[s] = append(sections[s], bson.E{Key: string(name), Value: v})
	}
	var diff bson.D
	for s, fields := range sections[:3] {
		if len(fields) > 0 {
			diff = append(diff, bson.E{Key: letters[s : s+1], Value: fields})
		}
	}
	for _, f := range sections[3] {
		diff = append(diff, bson.E{Key: "s" + f.Key, Value: f.Value})
	}
	if len(diff) == 0 {
		diff = bson.D{{Key: "u", Value: bson.D{{Key: "z", Value: 1}}}}
	}
	raw, err := bson.Marshal(diff)
	if err != nil {
		rt.Fatal(err)
	}
	return raw
}

func fewElements(rt *rapid.T) bson.D {
	diff := bson.D{{Key: "a", Value: true}}
	n := rapid.IntRange(1, 5).Draw(rt, "elements")
	if rapid.IntRange(0, 5).Draw(rt, "cut") == 0 {
		diff = append(diff, bson.E{Key: "l", Value: int32(n)})
	}
	for i := range n {
		key := string(rune('0' + i))
		switch rapid.IntRange(0, 5).Draw(rt, "element") {
		case 0, 1:
			diff = append(diff, bson.E{Key: "u" + key, Value: rapid.IntRange(0, 9).Draw(rt, "value")})
		case 2:
			diff = append(diff, bson.E{Key: "s" + key, Value: fewFields(rt, 0)})
		}
	}
	return diff
}

func TestFold(t *testing.T) {
	for _, tc := range []struct {
		deltas []string
		want   string // of all but the last, if that is not taken
		taken  bool
	}{
		{[]string{`{"u":{"a":1}}`, `{"u":{"b":1}}`, `{"u":{"a":2}}`}, `{"u":{"a":2,"b":1}}`, true},
		{[]string{`{"d":{"p":false},"i":{"q":1}}`, `{"d":{"q":false},"i":{"p":2}}`}, `{"d":{"q":false},"i":{"p":2}}`, true},
		{[]string{`{"i":{"x":1,"y":1}}`, `{"i":{"x":2}}`}, `{"i":{"y":1,"x":2}}`, true},
		{[]string{`{"sa":{"u":{"x":1}}}`, `{"sa":{"sb":{"u":{"y":2}}}}`, `{"sa":{"sb":{"d":{"z":false}}}}`}, `{"sa":{"u":{"x":1},"sb":{"d":{"z":false},"u":{"y":2}}}}`, true},
		{[]string{`{"sa":{"a":true,"u0":1}}`, `{"sa":{"a":true,"u0":2,"u3":1}}`, `{"sa":{"a":true,"u4":1}}`}, `{"sa":{"a":true,"u0":2,"u3":1,"u4":1}}`, true},
		{[]string{`{"sa":{"u":{"x":1}}}`, `{"u":{"a":1}}`}, `{"u":{"a":1}}`, true},
		{[]string{`{"u":{"a":1}}`, `{"d":{"a":false}}`, `{"u":{"a":1}}`}, `{"d":{"a":false}}`, false},
		{[]string{`{"u":{"a":1}}`, `{"sa":{"u":{"x":1}}}`}, `{"u":{"a":1}}`, false},
		{[]string{`{"sa":{"a":true,"u3":1}}`, `{"sa":{"a":true,"u1":1}}`}, `{"sa":{"a":true,"u3":1}}`, false},
		{[]string{`{"sa":{"a":true,"u3":1}}`, `{"sa":{"a":true,"l":3}}`}, `{"sa":{"a":true,"u3":1}}`, false},
		{[]string{`{"i":{"_id":1}}`, `{"u":{"a":1}}`}, `{"i":{"_id":1}}`, false},
		{[]string{`{"u":{"a":1}}`, `{"d":{"_id":false}}`}, `{"u":{"a":1}}`, false},
		{[]string{`{"u":{"_id":1}}`, `{"u":{"a":1,"_id":2}}`}, `{"u":{"_id":2,"a":1}}`, true},
		{[]string{`{"u":{"a":1,"b":1}}`, `{"d":{"a":false,"b":false},"u":{"c":1}}`}, `{"u":{"a":1,"b":1}}`, false},
		{[]string{`{"u":{"a":1}}`, `{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}`}, `{"u":{"a":1}}`, false},
		// A delta that is not folded leaves a binary change inside of a field as it was.
		{
			[]string{`{"u":{"a":1}}`, `{"sf":{"b":{"g":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}}`, `{"sf":{"u":{"h":2}}}`},
			`{"u":{"a":1},"sf":{"b":{"g":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}}`, false,
		},
	} {
		var f update.Folder
		var arena update.Arena
		for i, diff := range tc.deltas {
			if taken := f.Add(delta(t, diff)); taken != (tc.taken || i+1 < len(tc.deltas)) {
				t.Errorf("%s: %d is taken: %v", tc.deltas, i, taken)
			}
		}
		same(t, f.Diff(&arena).AppendDiff(nil), parse(t, tc.want))
	}
}

// foldedDeltas returns deltas of one document: some fields, one nested change, one
// element.
func foldedDeltas(tb testing.TB) []bson.Raw {
	return []bson.Raw{
		parse(tb, `{"u":{"count":2,"name":"somebody else"}}`), parse(tb, `{"u":{"name":"a third"},"sin":{"u":{"a":1}}}`),
		parse(tb, `{"sin":{"u":{"b":1}},"slast":{"a":true,"u2":1}}`), parse(tb, `{"u":{"count":3},"slast":{"a":true,"u3":1}}`),
	}
}

func TestFoldAllocations(t *testing.T) {
	diffs := foldedDeltas(t)
	var f update.Folder
	var arena update.Arena
	if n := testing.AllocsPerRun(100, func() { foldAll(t, &f, &arena, diffs, 50) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func foldAll(tb testing.TB, f *update.Folder, arena *update.Arena, diffs []bson.Raw, times int) {
	arena.Reset()
	for range times {
		for _, diff := range diffs {
			if d, err := arena.Parse(diff); err != nil || !f.Add(d) {
				tb.Fatalf("%s: %v", diff, err)
			}
		}
	}
	f.Diff(arena)
}

func BenchmarkFold(b *testing.B) {
	diffs := foldedDeltas(b)
	var f update.Folder
	var arena update.Arena
	b.ReportAllocs()
	for b.Loop() {
		foldAll(b, &f, &arena, diffs, 50)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/delta")
}
