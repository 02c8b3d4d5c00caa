package serverquery

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestBounds(t *testing.T) {
	for filter, want := range map[string]string{
		`{}`:                         ``,
		`{"_id":5}`:                  `= 5`,
		`{"_id":{"$in":[1,2,1.0]}}`:  `= 1 2`,
		`{"_id":{"$in":[1,null]}}`:   ``,
		`{"_id":{"$in":[]}}`:         `=`,
		`{"_id":{"$gte":1,"$lt":9}}`: `>= 1 < 9`,
		`{"_id":{"$gt":1,"$gte":1}}`: `> 1`,
		`{"_id":{"$gte":1,"$gt":1}}`: `> 1`,
		`{"_id":{"$lte":3,"$lt":3}}`: `< 3`,
		`{"_id":{"$gt":1},"x":{"$gt":5},"$and":[{"_id":{"$gt":7}},{"_id":{"$lte":20}}]}`: `> 7 <= 20`,
		`{"$or":[{"_id":1},{"_id":2}]}`:            ``,
		`{"$or":[{"_id":1}]}`:                      `= 1`,
		`{"$nor":[{"_id":1}]}`:                     ``,
		`{"_id":{"$ne":1}}`:                        ``,
		`{"_id":{"$not":{"$gt":1}}}`:               ``,
		`{"_id":null}`:                             ``,
		`{"_id":[1]}`:                              ``,
		`{"_id":{"$gt":{"$minKey":1}}}`:            ``,
		`{"_id":{"$in":[1,2]},"$and":[{"_id":2}]}`: `= 2`,
		`{"_id":1,"$and":[{"_id":2}]}`:             `=`,
		`{"_id.x":1}`:                              ``,
		`{"_id":{"$regex":"^a"}}`:                  `>= `,
	} {
		b := mustCompile(t, filter).Bounds("_id")
		got := ""
		add := func(s string) {
			if got != "" {
				got += " "
			}
			got += s
		}
		if b.Exact {
			add("=")
			for _, p := range b.Points {
				n, _ := p.AsInt64OK()
				add(string(rune('0' + n)))
			}
		}
		if b.Low.Type != 0 {
			add(map[bool]string{true: ">", false: ">="}[b.LowOpen])
			add(plainNumber(b.Low.String()))
		}
		if b.High.Type != 0 {
			add(map[bool]string{true: "<", false: "<="}[b.HighOpen])
			add(plainNumber(b.High.String()))
		}
		if got != want {
			t.Errorf("%s: bounds %q, want %q", filter, got, want)
		}
	}
}

// plainNumber takes 5 out of {"$numberInt":"5"}.
func plainNumber(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return c
		}
		return -1
	}, s)
}

func TestEqualities(t *testing.T) {
	for filter, want := range map[string][]string{
		`{"b":1,"a.c":{"$eq":"x"},"d":{"$gt":1}}`:                   {"a.c", "b"},
		`{"$and":[{"a":1},{"b":{"$in":[2]}}],"c":{"$all":[3]}}`:     {"a", "b", "c"},
		`{"a":{"$in":[1,2]},"b":{"$ne":1},"$or":[{"c":1},{"d":1}]}`: nil,
		`{"$or":[{"c":1}]}`: {"c"},
		`{"a":{"$regularExpression":{"pattern":"x","options":""}}}`: nil,
		`{"a":null}`: {"a"},
	} {
		list, err := mustCompile(t, filter).Equalities()
		if err != nil {
			t.Errorf("%s: %v", filter, err)
		}
		var got []string
		for _, e := range list {
			got = append(got, e.Path)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filter, diff)
		}
	}
	for filter, message := range map[string]string{
		`{"a":1,"$and":[{"a":1}]}`: "cannot infer query fields to set, path 'a' is matched twice",
		`{"a":{"$all":[1,2]}}`:     "cannot infer query fields to set, path 'a' is matched twice",
		`{"a":1,"a.b":2}`:          "cannot infer query fields to set, both paths 'a.b' and 'a' are matched",
	} {
		_, err := mustCompile(t, filter).Equalities()
		wantRefusal(t, filter, err, servererr.NotSingleValueField, message)
	}
	if _, err := mustCompile(t, `{"a":1,"ab":2}`).Equalities(); err != nil {
		t.Error(err)
	}
}
