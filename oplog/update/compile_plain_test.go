package update_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

func TestAppendPlain(t *testing.T) {
	for _, tc := range []struct {
		diff, want string
		guarantee  update.Guarantee
	}{
		{`{"u":{"b":1,"a":"x"}}`, `{"$set":{"b":1,"a":"x"}}`, update.GuaranteePreImage},
		{`{"d":{"c":false,"e":false},"u":{"a":{"x":[1]}}}`, `{"$set":{"a":{"x":[1]}},"$unset":{"c":"","e":""}}`, update.GuaranteePreImage},
		{`{"d":{"c":false}}`, `{"$unset":{"c":""}}`, update.GuaranteeNone},
		{`{"u":{"a":1,"b":1}}`, `{"$set":{"a":1,"b":1}}`, update.GuaranteeNone},
		{`{"u":{"1":1}}`, `{"$set":{"1":1}}`, update.GuaranteeNone},
		{`{"u":{"b":1,"a":1}}`, ``, update.GuaranteeNone},
		{`{"u":{"1":1,"a":1}}`, ``, update.GuaranteeNone},
		{`{"d":{},"u":{"a":1}}`, `{"$set":{"a":1}}`, update.GuaranteePreImage},
		{`{"d":{},"u":{}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":1},"i":{"b":1}}`, ``, update.GuaranteeNewFields},
		{`{"u":{"a":1},"sb":{"u":{"x":1}}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":1},"d":{"b":false}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":1},"u":{"b":1}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":1,"a":1}}`, ``, update.GuaranteePreImage},
		{`{"d":{"a":false},"u":{"a":1}}`, ``, update.GuaranteePreImage},
		{`{"u":{"_id":1}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a.b":1}}`, ``, update.GuaranteePreImage},
		{`{"d":{"$a":false}}`, ``, update.GuaranteePreImage},
		{`{"u":{"":1}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":{"b":[{"$c":1}]}}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":{"$timestamp":{"t":0,"i":0}}}}`, ``, update.GuaranteePreImage},
		{`{"u":{"a":{"$timestamp":{"t":0,"i":1}}}}`, `{"$set":{"a":{"$timestamp":{"t":0,"i":1}}}}`, update.GuaranteePreImage},
		{`{"u":1}`, ``, update.GuaranteePreImage},
		{`{}`, ``, update.GuaranteePreImage},
	} {
		got, ok := update.AppendPlain([]byte("x"), parse(t, tc.diff), tc.guarantee)
		switch {
		case ok != (tc.want != "") || got[0] != 'x' || !ok && len(got) > 1:
			t.Errorf("%s: %v, %q", tc.diff, ok, got)
		case ok:
			same(t, got[1:], parse(t, tc.want))
		}
	}
}

// samePlain compares the result with that of the parsed delta. It reports whether
// there was anything to compare.
func samePlain(tb interface{ Fatalf(string, ...any) }, diff bson.Raw) bool {
	taken := false
	for _, g := range []update.Guarantee{update.GuaranteeNone, update.GuaranteePreImage, update.GuaranteeNewFields} {
		got, ok := update.AppendPlain(nil, diff, g)
		if !ok {
			continue
		}
		taken = true
		d, err := update.ParseDelta(diff)
		if err != nil {
			tb.Fatalf("%x is taken for a delta: %v", []byte(diff), err)
		}
		if want, ok := new(update.Arena).AppendModifiers(nil, d, g); !ok || string(got) != string(want) {
			tb.Fatalf("%s, guarantee %d\ngot  %s\nwant %s, %v", diff, g, bson.Raw(got), bson.Raw(want), ok)
		}
	}
	return taken
}

func TestPlainIsTheSame(t *testing.T) {
	taken, left := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		diff := bsongen.Delta(rt)
		switch rapid.IntRange(0, 3).Draw(rt, "shape") {
		case 0:
			diff = fewFields(rt, rapid.IntRange(0, 1).Draw(rt, "depth"))
		case 1, 2:
			u := bson.D{}
			for range rapid.IntRange(0, 14).Draw(rt, "fields") {
				u = append(u, bson.E{Key: bsongen.Name(rt), Value: bsongen.Value(rt, 3)})
			}
			raw, err := bson.Marshal(bson.D{{Key: "d", Value: bson.D{{Key: bsongen.Name(rt), Value: false}}}, {Key: "u", Value: u}})
			if err != nil {
				rt.Fatal(err)
			}
			diff = raw
		}
		if samePlain(rt, diff) {
			taken++
		} else {
			left++
		}
	})
	if taken < 10 || left < 10 {
		t.Errorf("%d taken, %d left", taken, left)
	}
}

// Accepted input is a valid delta, whatever the bytes are.
func FuzzPlain(f *testing.F) {
	for _, diff := range []string{
		`{"d":{"a":false},"u":{"b":{"x":[1,{"y":"z"}]},"c":{"$code":"f","$scope":{"a":1}}}}`, `{"u":{"a":1,"b":{"$timestamp":{"t":0,"i":0}}}}`,
	} {
		f.Add([]byte(parse(f, diff)))
	}
	f.Fuzz(func(t *testing.T, diff []byte) { samePlain(t, diff) })
}
