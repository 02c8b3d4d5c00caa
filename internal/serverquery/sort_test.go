package serverquery

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestSort(t *testing.T) {
	for _, c := range []struct {
		spec string
		docs []string // in the order that is wanted; they are sorted from the back
	}{
		{`{"a":1}`, []string{`{"a":{"$minKey":1}}`, `{"a":[]}`, `{}`, `{"a":-1}`, `{"a":[9,0]}`, `{"a":1.5}`, `{"a":"x"}`, `{"a":{"b":1}}`, `{"a":[["x"]]}`, `{"a":true}`, `{"a":{"$maxKey":1}}`}},
		{`{"a":-1}`, []string{`{"a":"x"}`, `{"a":[0,9]}`, `{"a":5}`, `{"a":null}`, `{"a":[]}`}},
		{`{"a":1,"b":-1}`, []string{`{"a":1,"b":2}`, `{"a":1,"b":1}`, `{"a":2,"b":9}`}},
		{`{"a.b":1}`, []string{`{"a":[]}`, `{"a":[{"b":0},{"b":9}]}`, `{"a":{"b":1}}`, `{"a":[{"b":[2,3]}]}`}},
		{`{"a.1":1}`, []string{`{"a":[9,1]}`, `{"a":[0,2]}`}},
		{`{"a.b":1,"a.c":-1}`, []string{`{"a":[{"b":1,"c":1},{"b":0,"c":2}]}`, `{"a":[{"b":0,"c":1}]}`, `{"a":{"b":1,"c":9}}`}},
	} {
		s, err := CompileSort(parseJSON(t, c.spec), Options{})
		if err != nil {
			t.Fatal(err)
		}
		docs := parseAll(t, c.docs...)
		var back []bson.Raw
		for i := range docs {
			back = append(back, docs[len(docs)-1-i])
		}
		if err := s.Docs(back); err != nil {
			t.Errorf("%s: %v", c.spec, err)
		}
		if diff := cmp.Diff(texts(docs), texts(back)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.spec, diff)
		}
	}
}

func TestSortIsStable(t *testing.T) {
	s, err := CompileSort(parseJSON(t, `{"a":1}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	docs := parseAll(t, `{"a":null,"n":1}`, `{"n":2}`, `{"a":null,"n":3}`, `{"a":{"$minKey":1},"n":4}`)
	if err := s.Docs(docs); err != nil {
		t.Fatal(err)
	}
	want := texts(parseAll(t, `{"a":{"$minKey":1},"n":4}`, `{"a":null,"n":1}`, `{"n":2}`, `{"a":null,"n":3}`))
	if diff := cmp.Diff(want, texts(docs)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRefusedSorts(t *testing.T) {
	for spec, code := range map[string]servererr.Code{
		`{"a":7}`: 15975, `{"a":1.5}`: 15975, `{"a":"x"}`: 15974, `{"a":{"$meta":"textScore"}}`: 238, `{"":1}`: 40352,
		`{"a.":1}`: 40353, `{"a..b":1}`: 15998, `{"$x":1}`: 16410, `{"a":1,"$natural":1}`: 2,
	} {
		_, err := CompileSort(parseJSON(t, spec), Options{})
		wantRefusal(t, spec, err, code, "")
	}
	s, err := CompileSort(parseJSON(t, `{"a":1,"b":1}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Docs(parseAll(t, `{"a":[1],"b":[2]}`))
	wantRefusal(t, "two arrays", err, servererr.BadValue, "cannot sort with keys that are parallel arrays")
	if s, err = CompileSort(parseJSON(t, `{"$natural":-1}`), Options{}); err != nil || s.Natural() != -1 {
		t.Error(s, err)
	}
}

func TestDistinct(t *testing.T) {
	docs := parseAll(t, `{"a":[{"b":1},{"b":[2,3]},{}]}`, `{"a":{"b":1.0}}`, `{"a":5}`, `{"a":{"b":null}}`, `{"a":{"b":[[4]]}}`)
	for path, want := range map[string]string{
		"a.b":   `{"v":[1,2,3,null,[4]]}`,
		"a.1.b": `{"v":[2,3]}`,
		"x":     `{"v":[]}`,
	} {
		d := NewDistinct(path, Options{})
		for _, doc := range docs {
			d.Add(doc)
		}
		got, err := bson.Marshal(bson.D{{Key: "v", Value: d.Values()}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(parseJSON(t, want).String(), bson.Raw(got).String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}
