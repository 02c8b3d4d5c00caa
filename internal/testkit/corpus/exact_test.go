package corpus

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog/update"
)

// TestExactOrMoving has data that is, and data that is not, what the log was
// written on.
func TestExactOrMoving(t *testing.T) {
	type E = bson.E
	const (
		moving    = "before/ is a moving copy: initial sync only"
		tolerated = "tolerated: "
	)
	plain := catalogOf(listed("d.c", 1, "{}", idIndex))
	withIndex := catalogOf(listed("d.c", 1, "{}", idIndex, `{"v": 2, "key": {"a": -1}, "name": "a"}`))
	index := func(key int) []E {
		return []E{{Key: "createIndexes", Value: "c"}, {Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "a", Value: key}}}, {Key: "name", Value: "a"}}
	}
	five := E{Key: "a", Value: 5}
	tests := []struct {
		name string
		recording
		fails bool
		note  string // the only note, "" for none
	}{
		{"exact", recording{
			before: dataOf(plain, doc(1)), after: dataOf(plain, doc(1, five)),
			log: []bson.D{change(E{Key: "i", Value: bson.D{five}})},
		}, false, ""},
		{"an insert over a document ends where it should", recording{
			before: dataOf(plain, doc(1)), after: dataOf(plain, doc(1, five)),
			log: []bson.D{insert(1, five)},
		}, false, tolerated + "inserts of existing documents: 1"},
		{"a wrong document, and nothing that speaks for a moving copy", recording{
			before: dataOf(plain, doc(1, five)), after: dataOf(plain, doc(1, five)),
			log: []bson.D{change(E{Key: "u", Value: bson.D{{Key: "a", Value: 6}}})},
		}, true, ""},
		{"a wrong document in a moving copy", recording{
			before: dataOf(plain, doc(1)), after: dataOf(plain, doc(1)),
			log: []bson.D{insert(1, five)},
		}, true, moving},
		{"a copy that is newer than a drop", recording{
			before: &data{catalog: "[]"}, after: &data{catalog: "[]"},
			log: []bson.D{insert(1), command(1, E{Key: "drop", Value: "c"})},
		}, false, moving},
		{"the same without a copy", recording{
			after: &data{catalog: "[]"},
			log:   []bson.D{insert(1), command(1, E{Key: "drop", Value: "c"})},
		}, true, ""},
		{"a delta of what was an array", recording{
			before: dataOf(plain, doc(1, five)), after: dataOf(plain, doc(1, five)),
			log: []bson.D{
				change(E{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "u0", Value: 5}}}),
				change(E{Key: "u", Value: bson.D{five}}),
			},
		}, false, ""},
		{"a delta of what was a document in an array", recording{
			before: dataOf(plain, doc(1, E{Key: "a", Value: bson.A{nil}})), after: dataOf(plain, doc(1, E{Key: "a", Value: bson.A{nil}})),
			log: []bson.D{
				change(E{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "s0", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 2}}}}}}}),
				change(E{Key: "sa", Value: bson.D{{Key: "a", Value: true}, {Key: "u0", Value: nil}}}),
			},
		}, false, ""},
		{"a later index of the same name", recording{
			before: dataOf(withIndex), after: dataOf(withIndex),
			log: []bson.D{
				command(1, index(1)...),
				command(1, E{Key: "dropIndexes", Value: "c"}, E{Key: "index", Value: "a"}),
				command(1, index(-1)...),
			},
		}, false, moving},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.write(t)
			r := Verify(t.Context(), &s, Options{})
			if r.Err != nil || r.OK() == tt.fails {
				t.Errorf("got %s", &r)
			}
			if notes := strings.Join(r.Notes, "; "); notes != tt.note {
				t.Errorf("got the notes %q, want %q", notes, tt.note)
			}
		})
	}
}

// A compiled update that is wrong must not pass for a sign of a moving copy,
// whatever else is tolerated.
func TestWrongOnExactData(t *testing.T) {
	s := (&recording{
		before: dataOf(catalogOf(listed("d.c", 1, "{}", idIndex)), doc(1)),
		after:  dataOf(catalogOf(listed("d.c", 1, "{}", idIndex)), doc(1)),
		log:    []bson.D{entry("d", "d.c", 1, doc(2))},
	}).write(t)
	p := proof{scenario: &s}
	if err := p.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.judge.wrongOnPreImage = []string{"wrong"}
	p.steady()
	if p.fuzzy || p.report.OK() || len(p.report.Notes) > 0 {
		t.Errorf("got %s", &p.report)
	}
}

func TestFits(t *testing.T) {
	const pre = `{"_id": 1, "a": 1, "d": {"x": 1}, "l": [1, {"x": 1}, [1]], "b": {"$binary": {"base64": "AA==", "subType": "00"}}}`
	tests := []struct {
		diff string
		want bool
	}{
		{`{"d": {"a": false}, "u": {"b": 1}}`, true},
		{`{"i": {"new": 1, "a": 1}}`, true},
		{`{"d": {"z": false}}`, false},
		{`{"u": {"z": 1}}`, false},
		{`{"b": {"b": {"o": 0, "d": {"$binary": {"base64": "AA==", "subType": "00"}}}}}`, true},
		{`{"b": {"a": {"o": 0, "d": {"$binary": {"base64": "AA==", "subType": "00"}}}}}`, false},
		{`{"sd": {"u": {"x": 2}}}`, true},
		{`{"sd": {"u": {"y": 2}}}`, false},
		{`{"sa": {"u": {"x": 2}}}`, false},
		{`{"sz": {"i": {"x": 2}}}`, false},
		{`{"sl": {"a": true, "u0": 1, "s1": {"u": {"x": 1}}, "u9": 1}}`, true},
		{`{"sl": {"a": true, "s0": {"i": {"x": 1}}}}`, false},
		{`{"sl": {"a": true, "s2": {"a": true, "l": 0}}}`, true},
		{`{"sl": {"a": true, "s3": {"a": true, "l": 0}}}`, false},
		{`{"sd": {"a": true, "l": 0}}`, false},
	}
	doc, err := fromJSON([]byte(pre))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		diff, err := fromJSON([]byte(tt.diff))
		if err != nil {
			t.Fatal(err)
		}
		d, err := update.ParseDelta(diff)
		if err != nil {
			t.Fatalf("%s: %v", tt.diff, err)
		}
		if got := fits(d, doc); got != tt.want {
			t.Errorf("%s: got %v", tt.diff, got)
		}
	}
}
