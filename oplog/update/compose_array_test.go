package update_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/oplog/update"
)

// arrayStep draws a delta of the array a with these elements, each a document {x:
// …}, as a server may log one: truncated, with elements set, also beyond the end,
// and with elements changed inside. It returns the array after it.
func arrayStep(rt *rapid.T, array []bson.D) (diff bson.D, after []bson.D) {
	next := func() int { return rapid.IntRange(0, 9).Draw(rt, "x") }
	diff = bson.D{{Key: "a", Value: true}}
	n := len(array)
	cut := n > 0 && rapid.IntRange(0, 2).Draw(rt, "cut") == 0
	if cut {
		n = rapid.IntRange(0, n-1).Draw(rt, "length")
		diff = append(diff, bson.E{Key: "l", Value: int32(n)})
	}
	after = append([]bson.D{}, array[:n]...)
	set := func(i int) {
		for len(after) <= i {
			after = append(after, nil)
		}
		after[i] = bson.D{{Key: "x", Value: next()}}
		diff = append(diff, bson.E{Key: key("u", i), Value: after[i]})
	}
	for i := range n {
		switch rapid.IntRange(0, 3).Draw(rt, "element") {
		case 0:
			set(i)
		case 1:
			if after[i] == nil {
				continue
			}
			x := next()
			after[i] = bson.D{{Key: "x", Value: x}}
			diff = append(diff, bson.E{Key: key("s", i), Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: x}}}}})
		}
	}
	if !cut && rapid.Bool().Draw(rt, "longer") {
		i := n + rapid.IntRange(0, 2).Draw(rt, "gap")
		set(i)
		if rapid.Bool().Draw(rt, "and one more") {
			set(i + 1)
		}
	}
	return diff, after
}

func key(letter string, i int) string {
	return letter + string(rune('0'+i/10)) + string(rune('0'+i%10))
}

func TestComposeArrays(t *testing.T) {
	composed, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		array := make([]bson.D, rapid.IntRange(0, 5).Draw(rt, "elements"))
		for i := range array {
			array[i] = bson.D{{Key: "x", Value: -1 - i}}
		}
		pre, err := bson.Marshal(bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: array}})
		if err != nil {
			rt.Fatal(err)
		}
		var all *update.ObjectDiff
		post := bson.Raw(pre)
		for range rapid.IntRange(2, 5).Draw(rt, "steps") {
			var diff bson.D
			diff, array = arrayStep(rt, array)
			for i, e := range diff {
				if e.Key != "a" && e.Key != "l" && e.Key[1] == '0' {
					diff[i].Key = e.Key[:1] + e.Key[2:]
				}
			}
			raw, err := bson.Marshal(bson.D{{Key: "sv", Value: diff}})
			if err != nil {
				rt.Fatal(err)
			}
			d, err := update.ParseDelta(raw)
			if err != nil {
				rt.Fatalf("%s: %v", bson.Raw(raw), err)
			}
			if all == nil {
				all = d
			} else {
				next, ok := new(update.Arena).Compose(all, d)
				if !ok {
					refused++
					return
				}
				composed++
				all = next
			}
			if post, err = d.Apply(post); err != nil {
				rt.Fatal(err)
			}
			want, err := bson.Marshal(bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: array}})
			if err != nil || string(want) != string(post) {
				rt.Fatalf("%s gives %s, want %s", bson.Raw(raw), post, bson.Raw(want))
			}
			diffAll := bson.Raw(all.AppendDiff(nil))
			got, err := all.Apply(pre)
			if err != nil || string(got) != string(post) {
				rt.Fatalf("%v\ncomposed %s\non       %s\ngives    %s\nwant     %s", err, diffAll, bson.Raw(pre), got, post)
			}
			compiles(rt, pre, diffAll, preImage)
			compiles(rt, pre, diffAll, update.CompileOptions{})
		}
	})
	if composed < 50 || refused < 3 {
		t.Errorf("%d composed, %d refused", composed, refused)
	}
}
