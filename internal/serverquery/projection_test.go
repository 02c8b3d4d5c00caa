package serverquery

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestProjection(t *testing.T) {
	const doc = `{"_id":1,"x":1,"s":"t","n":{"a":2,"b":[3,4]},"l":[{"a":1,"b":2},7,[{"a":5}],{"b":9}]}`
	for _, c := range []struct{ spec, want string }{
		{`{}`, doc},
		{`{"x":1}`, `{"_id":1,"x":1}`},
		{`{"s":true,"x":1,"_id":0}`, `{"x":1,"s":"t"}`},
		{`{"_id":1}`, `{"_id":1}`},
		{`{"_id":0}`, `{"x":1,"s":"t","n":{"a":2,"b":[3,4]},"l":[{"a":1,"b":2},7,[{"a":5}],{"b":9}]}`},
		{`{"n":0,"l":0,"_id":1}`, `{"_id":1,"x":1,"s":"t"}`},
		{`{"n.a":1}`, `{"_id":1,"n":{"a":2}}`},
		{`{"n":{"a":1}}`, `{"_id":1,"n":{"a":2}}`},
		{`{"n.zz":1}`, `{"_id":1,"n":{}}`},
		{`{"x.y":1}`, `{"_id":1}`},
		{`{"l.a":1}`, `{"_id":1,"l":[{"a":1},[{"a":5}],{}]}`},
		{`{"l.a":0,"n":0,"x.y":0}`, `{"_id":1,"x":1,"s":"t","l":[{"b":2},7,[{}],{"b":9}]}`},
		{`{"y":"$x","x":1}`, `{"_id":1,"x":1,"y":1}`},
		{`{"s":1,"x":{"$add":["$x",1]}}`, `{"_id":1,"s":"t","x":2}`},
		{`{"y":"$nope"}`, `{"_id":1}`},
		{`{"n.c":{"$literal":1},"n.a":1}`, `{"_id":1,"n":{"a":2,"c":1}}`},
		{`{"x.c":"v"}`, `{"_id":1,"x":{"c":"v"}}`},
		{`{"l.z":"v"}`, `{"_id":1,"l":[{"z":"v"},{"z":"v"},[{"z":"v"}],{"z":"v"}]}`},
	} {
		p, err := CompileProjection(parseJSON(t, c.spec), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		got, err := p.Apply(parseJSON(t, doc))
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", c.spec, err)
		}
		if diff := cmp.Diff(parseJSON(t, c.want).String(), got.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.spec, diff)
		}
	}
}

func TestRefusedProjections(t *testing.T) {
	for _, c := range []struct {
		spec    string
		code    servererr.Code
		message string
	}{
		{`{"a":1,"b":0}`, 31254, "Cannot do exclusion on field b in inclusion projection"},
		{`{"a":0,"b":1}`, 31253, "Cannot do inclusion on field b in exclusion projection"},
		{`{"a":0,"b":"$x"}`, 31252, ""},
		{`{"a":1,"a.b":1}`, 31249, "Path collision at a.b remaining portion b"},
		{`{"a.b":1,"a":1}`, 31250, "Path collision at a"},
		{`{"a":{}}`, 51270, ""},
		{`{"a":{"$nope":1}}`, 168, ""},
		{`{"a.$":1}`, 238, ""},
		{`{"a.$.b":1}`, 31394, ""},
		{`{"a":{"$slice":1}}`, 238, ""},
		{`{"a":{"$elemMatch":{"x":1}}}`, 238, ""},
		{`{"a":{"$meta":"textScore"}}`, 238, ""},
		{`{"a..b":1}`, 15998, ""},
	} {
		_, err := CompileProjection(parseJSON(t, c.spec), Options{})
		wantRefusal(t, c.spec, err, c.code, c.message)
	}
}
