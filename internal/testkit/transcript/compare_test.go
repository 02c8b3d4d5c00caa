package transcript

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name, want, got string
		paths           []string
	}{
		{"equal", `{"a":1,"b":{"c":[1,2]}}`, `{"a":1,"b":{"c":[1,2]}}`, nil},
		{"another value", `{"a":{"b":[1,2]}}`, `{"a":{"b":[1,3]}}`, []string{"a.b.1"}},
		{"another type", `{"n":1}`, `{"n":{"$numberLong":"1"}}`, []string{"n"}},
		{"missing", `{"a":1,"b":2,"c":3}`, `{"a":1,"c":3}`, []string{"b"}},
		{"missing at the end", `{"a":1,"b":2}`, `{"a":1}`, []string{"b"}},
		{"one too many", `{"a":1,"c":3}`, `{"a":1,"b":2,"c":3}`, []string{"b"}},
		{"one too many at the end", `{"a":1}`, `{"a":1,"b":2}`, []string{"b"}},
		{"another order", `{"a":1,"b":2,"c":3}`, `{"b":2,"a":1,"c":3}`, []string{"a"}},
		{"a longer array", `{"a":[1]}`, `{"a":[1,2]}`, []string{"a.1"}},
		{"no cursor", `{"cursor":{"id":{"$numberLong":"5"}}}`, `{"cursor":{"id":{"$numberLong":"0"}}}`, []string{"cursor.id"}},
		{"another cursor", `{"cursor":{"id":{"$numberLong":"5"}}}`, `{"cursor":{"id":{"$numberLong":"6"}}}`, nil},
		{"a cursor of a narrower type", `{"cursor":{"id":{"$numberLong":"5"}}}`, `{"cursor":{"id":6}}`, []string{"cursor.id"}},
		{
			"gossip", `{"$clusterTime":{"clusterTime":{"$timestamp":{"t":5,"i":1}},"signature":1}}`,
			`{"$clusterTime":{"clusterTime":{"$timestamp":{"t":6,"i":1}},"signature":2}}`, nil,
		},
		{
			"gossip of another form", `{"$clusterTime":{"clusterTime":{"$timestamp":{"t":5,"i":1}},"signature":1}}`,
			`{"$clusterTime":{"clusterTime":{"$timestamp":{"t":6,"i":1}}}}`,
			[]string{"$clusterTime"},
		},
		{
			"a term", `{"opTime":{"ts":{"$timestamp":{"t":5,"i":1}},"t":{"$numberLong":"4"}},"electionId":{"$oid":"7fffffff0000000000000004"}}`,
			`{"opTime":{"ts":{"$timestamp":{"t":6,"i":1}},"t":{"$numberLong":"1"}},"electionId":{"$oid":"7fffffff0000000000000001"}}`, nil,
		},
		{
			"an election of another term", `{"opTime":{"t":{"$numberLong":"4"}},"electionId":{"$oid":"7fffffff0000000000000004"}}`,
			`{"opTime":{"t":{"$numberLong":"1"}},"electionId":{"$oid":"7fffffff0000000000000002"}}`,
			[]string{"electionId"},
		},
		{"a null optime", `{"opTime":{"ts":{"$timestamp":{"t":0,"i":0}}}}`, `{"opTime":{"ts":{"$timestamp":{"t":6,"i":1}}}}`, []string{"opTime.ts"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := comparer{rules: replyRules, pairs: newPairs()}
			c.document("", bsongen.FromJSON(t, tt.want), bsongen.FromJSON(t, tt.got))
			var paths []string
			for _, d := range c.found {
				paths = append(paths, d.Path)
			}
			if diff := cmp.Diff(tt.paths, paths); diff != "" {
				t.Errorf("%v\n%s", c.found, diff)
			}
		})
	}
}

func TestTemporaryNames(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		same      bool
	}{
		{"db.coll", "db.coll", true},
		{"db.coll", "db.other", false},
		{"db.tmpAbCd1.convertToCapped.a", "db.tmpzzzzz.convertToCapped.a", true},
		{"db.tmpAbCd1.convertToCapped.a", "db.tmpzzzzz.convertToCapped.b", false},
		{"db.tmpAbCd1.convertToCapped.a", "other.tmpzzzzz.convertToCapped.a", false},
		{"db.tmpAbCd1.convertToCapped.a", "db.tmpzzzzz.renameCollection", false},
		{"tmpAbCd1.convertToCapped.a", "tmpzzzzz.convertToCapped.a", true},
		{"db.tmpAbCd1.x", "db.a", false},
	} {
		c := comparer{rules: entryRules, pairs: newPairs()}
		c.document("", bsongen.FromJSON(t, `{"ns":"`+tt.want+`"}`), bsongen.FromJSON(t, `{"ns":"`+tt.got+`"}`))
		if same := len(c.found) == 0; same != tt.same {
			t.Errorf("%s, %s: %v", tt.want, tt.got, c.found)
		}
	}
}

// TestPairs compares with two lists: a pair goes with those before it if neither
// side occurs in another one.
func TestPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPairs()
		type pair struct{ want, got string }
		var before []pair
		value := rapid.SampledFrom([]string{"", "a", "b", "c", "d"})
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			next := pair{value.Draw(t, "want"), value.Draw(t, "got")}
			fits := true
			for _, b := range before {
				if (b.want == next.want) != (b.got == next.got) {
					fits = false
				}
			}
			if got := p.match(kindCursor, next.want, next.got); got != fits {
				t.Fatalf("match(%q, %q) after %q: %t", next.want, next.got, before, got)
			}
			if fits {
				before = append(before, next)
			}
			if !p.match(kindUUID, "a", "b") {
				t.Fatal("another kind of value has pairs of its own")
			}
		}
	})
}

func TestNearWall(t *testing.T) {
	const wall = 1_700_000_000_000
	for _, tt := range []struct {
		v    any
		near bool
	}{
		{bson.DateTime(wall), true},
		{bson.DateTime(wall - 1999), true},
		{bson.DateTime(wall + 2001), false},
		{bson.Timestamp{T: wall / 1000, I: 7}, true},
		{bson.Timestamp{T: wall/1000 - 3, I: 7}, false},
		{int64(wall), false},
	} {
		raw, err := bson.Marshal(bson.D{{Key: "v", Value: tt.v}})
		if err != nil {
			t.Fatal(err)
		}
		if near := nearWall(bson.Raw(raw).Lookup("v"), wall); near != tt.near {
			t.Errorf("%v: %t", tt.v, near)
		}
	}
}

// TestColumns: the columns of a bucket may come in any order, and are the same.
func TestColumns(t *testing.T) {
	const want = `{"ns":"d.system.buckets.m","o":{"_id":1,"data":{"a":{"0":1},"b":{"0":2}}}}`
	for got, differences := range map[string]int{
		want: 0,
		`{"ns":"d.system.buckets.m","o":{"_id":1,"data":{"b":{"0":2},"a":{"0":1}}}}`:             0,
		`{"ns":"d.system.buckets.m","o":{"_id":1,"data":{"b":{"0":2},"a":{"0":3}}}}`:             1,
		`{"ns":"d.system.buckets.m","o":{"_id":1,"data":{"b":{"0":2}}}}`:                         1,
		`{"ns":"d.system.buckets.m","o":{"_id":1,"data":{"b":{"0":2},"a":{"0":1},"c":{"0":1}}}}`: 1,
	} {
		c := comparer{rules: bucketRules, pairs: newPairs()}
		c.document("", bsongen.FromJSON(t, want), bsongen.FromJSON(t, got))
		if len(c.found) != differences {
			t.Errorf("%s: %v", got, c.found)
		}
	}
	like := bsongen.FromJSON(t, `{"_id":1,"data":{"a":1,"b":2}}`)
	for got, same := range map[string]bool{
		`{"_id":1,"data":{"b":2,"a":1}}`:       true,
		`{"_id":1,"data":{"b":2,"a":2}}`:       false,
		`{"_id":1,"data":{"b":2}}`:             false,
		`{"_id":1,"data":{"c":3,"b":2,"a":1}}`: false,
		`{"data":{"b":2,"a":1},"_id":1}`:       false,
	} {
		if is := bytes.Equal(reordered(bsongen.FromJSON(t, got), like), like); is != same {
			t.Errorf("%s: %t", got, is)
		}
	}
}
