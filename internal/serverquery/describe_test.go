package serverquery

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// What a server says of documents that a validator of one condition refuses.
func TestValidationFailures(t *testing.T) {
	for _, c := range []struct{ validator, doc, want string }{
		{`{"a":{"$exists":true}}`, `{"b":1}`, `{"operatorName":"$exists","specifiedAs":{"a":{"$exists":true}},"reason":"path does not exist"}`},
		{`{"a":2}`, `{"a":1}`, `{"operatorName":"$eq","specifiedAs":{"a":2},"reason":"comparison failed","consideredValue":1}`},
		{`{"a":{"$eq":2}}`, `{"b":1}`, `{"operatorName":"$eq","specifiedAs":{"a":{"$eq":2}},"reason":"field was missing"}`},
		{
			`{"a.b":{"$eq":0}}`, `{"a":[{"b":[1,2]},{"b":[3,4]}]}`,
			`{"operatorName":"$eq","specifiedAs":{"a.b":{"$eq":0}},"reason":"comparison failed","consideredValues":[1,2,3,4]}`,
		},
		{
			`{"a":{"$eq":[1,2]}}`, `{"a":[]}`,
			`{"operatorName":"$eq","specifiedAs":{"a":{"$eq":[1,2]}},"reason":"comparison failed","consideredValues":[]}`,
		},
		{
			`{"a":{"$type":"int"}}`, `{"a":"one"}`,
			`{"operatorName":"$type","specifiedAs":{"a":{"$type":"int"}},"reason":"type did not match","consideredValue":"one","consideredType":"string"}`,
		},
		{
			`{"a":{"$mod":[2,1]}}`, `{"a":"two"}`,
			`{"operatorName":"$mod","specifiedAs":{"a":{"$mod":[2,1]}},"reason":"type did not match","consideredType":"string","expectedTypes":["decimal","double","int","long"],"consideredValue":"two"}`,
		},
		{
			`{"a":{"$type":"int"}}`, `{"a":["x",1.5,"y"]}`,
			`{"operatorName":"$type","specifiedAs":{"a":{"$type":"int"}},"reason":"type did not match","consideredValues":["x",1.5,"y"],"consideredTypes":["double","string"]}`,
		},
		{
			`{"a":{"$regex":"x","$options":""}}`, `{"a":"one"}`,
			`{"operatorName":"$regex","specifiedAs":{"a":{"$regex":"x","$options":""}},"reason":"regular expression did not match","consideredValue":"one"}`,
		},
	} {
		v, err := CompileValidator(parseJSON(t, c.validator), Options{})
		if err != nil {
			t.Errorf("%s: %v", c.validator, err)
			continue
		}
		doc := parseJSON(t, `{"_id":7,`+c.doc[1:])
		e, ok := errors.AsType[*servererr.Error](v.Check(doc))
		if !ok || e.Code != servererr.DocumentValidationFailure {
			t.Errorf("%s on %s: %v", c.validator, c.doc, e)
			continue
		}
		want := parseJSON(t, `{"errInfo":{"failingDocumentId":7,"details":`+c.want+`}}`)
		if diff := cmp.Diff(want.String(), e.Info.String()); diff != "" {
			t.Errorf("%s on %s (-want +got):\n%s", c.validator, c.doc, diff)
		}
	}
}

func TestSchema(t *testing.T) {
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"bsonType":"object","required":["a"]}`, []string{`{"a":null}`}, []string{`{}`}},
		{`{"properties":{"a":{"bsonType":["int","null"]}}}`, []string{`{}`, `{"a":1}`, `{"a":null}`}, []string{`{"a":"x"}`, `{"a":[1]}`}},
		{`{"properties":{"a":{"type":"boolean"}}}`, []string{`{"a":true}`}, []string{`{"a":1}`}},
		{`{"additionalProperties":false,"properties":{"s":{},"_id":{}}}`, []string{`{"s":"x"}`, `{}`}, []string{`{"n":1}`, `{"s":1,"n":1}`}},
		{`{"additionalProperties":true,"properties":{"s":{"type":"object","required":["t"]}}}`, []string{`{"n":1,"s":{"t":1}}`}, []string{`{"s":{}}`}},
	} {
		m := mustCompile(t, `{"$jsonSchema":`+c.schema+`}`)
		for _, doc := range c.yes {
			if ok, _ := m.Match(parseJSON(t, doc)); !ok {
				t.Errorf("%s refuses %s", c.schema, doc)
			}
		}
		for _, doc := range c.no {
			if ok, _ := m.Match(parseJSON(t, doc)); ok {
				t.Errorf("%s accepts %s", c.schema, doc)
			}
		}
	}
}
