package serverupdate_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

const evaluated = `{"i":7,"l":{"$numberLong":"5"},"d":2.5,"s":"aBé","a":[1,2.5,"x"],"b":true,"o":{"$oid":"000000000000000000000001"},"n":null}`

func TestExpressions(t *testing.T) {
	doc := bsongen.FromJSON(t, evaluated)
	for expr, want := range map[string]string{
		`"$i"`:                                 `7`,
		`"$a"`:                                 `[1,2.5,"x"]`,
		`"$$ROOT.a"`:                           `[1,2.5,"x"]`,
		`{"x":"$i","y":"$zz"}`:                 `{"x":7}`,
		`{"$concat":["$s","-"]}`:               `"aBé-"`,
		`{"$ifNull":["$n","$zz","$i"]}`:        `7`,
		`{"$cond":[{"$gt":["$i",5]},"y","n"]}`: `"y"`,
	} {
		x, err := serverupdate.CompileExpr(bsongen.FromJSON(t, `{"e":`+expr+`}`).Lookup("e"))
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		got, found, err := x.Eval(doc)
		if expected := bsongen.FromJSON(t, `{"e":`+want+`}`).Lookup("e"); err != nil || !found || !got.Equal(expected) {
			t.Errorf("%s: %v, %t, %v; want %v", expr, got, found, err, expected)
		}
	}
}

func TestMissingIsNoValue(t *testing.T) {
	for expr, test := range map[string]bool{`"$zz"`: false, `"$i"`: true, `"$n"`: false, `{"$arrayElemAt":["$a",9]}`: false} {
		x, err := serverupdate.CompileExpr(bsongen.FromJSON(t, `{"e":`+expr+`}`).Lookup("e"))
		if err != nil {
			t.Fatal(err)
		}
		doc := bsongen.FromJSON(t, evaluated)
		if got, err := x.Test(doc); err != nil || got != test {
			t.Errorf("%s is %t, %v", expr, got, err)
		}
		if _, found, err := x.Eval(doc); err != nil || found != (expr == `"$i"` || expr == `"$n"`) {
			t.Errorf("%s: found is %t, %v", expr, found, err)
		}
	}
}

func TestRefusedExpressions(t *testing.T) {
	for expr, code := range map[string]int{
		`{"$add":["$s"]}`: 16554, `{"$multiply":["$i",2]}`: 238, `{"$switch":{}}`: 238,
		`{"$dateToString":{}}`: 238, `{"$nope":1}`: 168,
	} {
		x, err := serverupdate.CompileExpr(bsongen.FromJSON(t, `{"e":`+expr+`}`).Lookup("e"))
		if err == nil {
			_, _, err = x.Eval(bsongen.FromJSON(t, evaluated))
		}
		if e, ok := errors.AsType[*serverupdate.Error](err); !ok || int(e.Code) != code {
			t.Errorf("%s: %v, want code %d", expr, err, code)
		}
	}
	if _, err := serverupdate.CompileExpr(bson.RawValue{Type: bson.TypeArray, Value: []byte{1}}); err == nil {
		t.Error("no BSON compiles")
	}
}

func TestTransform(t *testing.T) {
	stages := []bson.Raw{bsongen.FromJSON(t, `{"$unset":"b"}`), bsongen.FromJSON(t, `{"$set":{"b":{"$add":["$a",1]}}}`)}
	tr, err := serverupdate.CompileTransform(stages)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := tr.Run(bsongen.FromJSON(t, `{"b":0,"a":1}`))
		if want := bsongen.FromJSON(t, `{"b":2,"a":1}`); err != nil || string(got) != string(want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	if _, err := serverupdate.CompileTransform([]bson.Raw{{1}}); err == nil {
		t.Error("no BSON compiles")
	}
}
