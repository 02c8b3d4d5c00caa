package serverupdate

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func TestReplacement(t *testing.T) {
	runCases(t, []updateCase{
		{"keeps _id", `{"_id": 1, "a": 1}`, `{"b": 1}`, `{"_id": 1, "b": 1}`},
		{"empty", `{"_id": 1, "a": 1}`, `{}`, `{"_id": 1}`},
		{"_id comes first", `{"_id": 1, "a": 1}`, `{"b": 1, "_id": 1}`, `{"_id": 1, "b": 1}`},
		{"equal _id takes the new form", `{"_id": 1, "a": 1}`, `{"_id": "@long:1"}`, `{"_id": "@long:1"}`},
		{"same document stays as it is", `{"a": 1, "_id": 1}`, `{"a": 1, "_id": 1}`, `{"a": 1, "_id": 1}`},
		{"values are literal", `{"_id": 1}`, `{"a": "$b", "c": {"$d": 1, "e.f": 1}, "g.h": 1}`, `{"_id": 1, "a": "$b", "c": {"$d": 1, "e.f": 1}, "g.h": 1}`},
		{"other _id", `{"_id": 1}`, `{"_id": 2}`, `66`},
		{"dollar at the top", `{"_id": 1}`, `{"a": 1, "$b": 1}`, `52`},
		{"reference at the top", `{"_id": 1}`, `{"a": 1, "$ref": "c", "$id": 1, "$db": "d"}`, `{"_id": 1, "a": 1, "$ref": "c", "$id": 1, "$db": "d"}`},
		{"$ref without $id", `{"_id": 1}`, `{"a": 1, "$ref": "c"}`, `55`},
		{"$id without $ref", `{"_id": 1}`, `{"a": 1, "$id": 1}`, `55`},
		{"$db without $id", `{"_id": 1}`, `{"a": 1, "$db": "d"}`, `55`},
		{"no _id anywhere", `{"a": 1}`, `{"b": 1}`, `{"b": 1}`},
		{"too deep", `{"_id": 1}`, `{"a": ` + nested(180) + `}`, `15`},
		{"as deep as may be", `{"_id": 1}`, `{"a": ` + nested(179) + `}`, `{"_id": 1, "a": ` + nested(179) + `}`},
		{"neither array nor object", `{"_id": 1}`, `1`, `9`},
	})
}

func TestPipelineResult(t *testing.T) {
	runCases(t, []updateCase{
		{"_id kept and put first", `{"_id": 1, "a": 1}`, `[{"$replaceWith": {"b": 1}}]`, `{"_id": 1, "b": 1}`},
		{"_id moved to the front", `{"_id": 1}`, `[{"$replaceWith": {"b": 1, "_id": 1}}]`, `{"_id": 1, "b": 1}`},
		{"_id equal", `{"_id": {"a": 1}}`, `[{"$set": {"_id": {"$literal": {"a": "@long:1"}}}}]`, `{"_id": {"a": "@long:1"}}`},
		{"_id changed", `{"_id": 1}`, `[{"$set": {"_id": 2}}]`, `66`},
		{"_id nulled", `{"_id": 1}`, `[{"$set": {"_id": null}}]`, `66`},
		{"_id an array", `{"_id": 1}`, `[{"$set": {"_id": [1]}}]`, `53`},
		{"_id a regular expression", `{"_id": 1}`, `[{"$set": {"_id": "@regex:a:"}}]`, `53`},
		{"_id with dollars", `{"_id": 1}`, `[{"$set": {"_id": {"$literal": {"a": [{"$b": 1}]}}}}]`, `52`},
		{"_id a reference", `{"_id": 1}`, `[{"$set": {"_id": {"$literal": {"$ref": "a", "$id": 1}}}}]`, `66`},
		{"_id added", `{"a": 1}`, `[{"$set": {"_id": 2}}]`, `{"_id": 2, "a": 1}`},
		{"too deep", `{"_id": 1}`, `[{"$set": {"a": {"$literal": ` + nested(180) + `}}}]`, `15`},
		{"as deep as may be", `{"_id": 1}`, `[{"$set": {"a": {"$literal": ` + nested(179) + `}}}]`, `{"_id": 1, "a": ` + nested(179) + `}`},
		{
			"empty objects take no level", `{"_id": 1}`, `[{"$set": {"a": {"$literal": ` + strings.Replace(nested(179), "1", "{}", 1) + `}}}]`,
			`{"_id": 1, "a": ` + strings.Replace(nested(179), "1", "{}", 1) + `}`,
		},
	})
}

func TestTick(t *testing.T) {
	doc := parseDoc(t, `{"_id": 1}`)
	u := parse(t, `{"_id": 1, "a": "@ts:0:0", "b": "@ts:0:1", "c": {"d": "@ts:0:0"}, "e": "@ts:0:0"}`)
	now := bson.Timestamp{T: 7, I: 3}
	tick := func() bson.Timestamp { now.I++; return now }
	got, err := Options{Tick: tick}.Apply(doc, u)
	if err != nil {
		t.Fatal(err)
	}
	want := parseDoc(t, `{"_id": 1, "a": "@ts:7:4", "b": "@ts:0:1", "c": {"d": "@ts:0:0"}, "e": "@ts:7:5"}`)
	if diff := cmp.Diff(show(want), show(got)); diff != "" {
		t.Error(diff)
	}
	if got, err := Apply(doc, u); err != nil || !bytes.Equal(got, u.Value) {
		t.Errorf("without Tick: %v, error %v", got, err)
	}
}

func TestSizes(t *testing.T) {
	// _id, a name, the string's length and terminator, the document's own bytes.
	const around = 5 + 9 + 3 + 5
	big := func(n int) []byte {
		return bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(
			bsoncore.AppendInt32Element(nil, "_id", 1), "a", strings.Repeat("x", n-around)))
	}
	doc := parseDoc(t, `{"_id": 1}`)
	object := func(b []byte) bson.RawValue { return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: b} }

	got, err := Apply(doc, object(big(MaxDocumentSize)))
	if err != nil || len(got) != MaxDocumentSize {
		t.Errorf("largest document: %d bytes, error %v", len(got), err)
	}
	wantCode(t, second(Apply(doc, object(big(MaxDocumentSize+1)))), 17419)

	half := parseDoc(t, `{"_id": 1, "s": "`+strings.Repeat("x", MaxDocumentSize/2)+`"}`)
	wantCode(t, second(Apply(half, parse(t, `[{"$set": {"t": "$s"}}]`))), 17419)
	wantCode(t, second(Apply(half, parse(t, `[{"$set": {"t": "$s", "u": "$s"}}]`))), codeBSONObjectTooLarge)
	wantCode(t, second(Apply(half, parse(t, `[{"$set": {"t": ["$s", "$s", "$s", "$s", "$s", "$s", "$s", "$s", "$s"]}}]`))), 13548)

	if err := CheckStatement(object(big(MaxDocumentSize))); err != nil {
		t.Error(err)
	}
	wantCode(t, CheckStatement(object(big(maxStatementSize))), codeBSONObjectTooLarge)
	if err := CheckStatement(parse(t, nested(199))); err != nil {
		t.Error(err)
	}
	wantCode(t, CheckStatement(parse(t, nested(200))), codeOverflow)
	wantCode(t, CheckStatement(parse(t, `1`)), codeFailedToParse)
}

func second(_ bson.Raw, err error) error { return err }

func wantCode(t *testing.T, err error, code int) {
	t.Helper()
	if e, ok := errors.AsType[*Error](err); !ok || int(e.Code) != code {
		t.Errorf("got %v, want code %d", err, code)
	}
}

func TestDepth(t *testing.T) {
	for v, want := range map[string]int{
		`1`: 0, `{}`: 1, `[]`: 1, `{"a": 1}`: 1, `{"a": {}}`: 2, `[[1], {"a": [1]}, 2]`: 3, `"@scope:x"`: 1, `["@scope:x"]`: 2,
	} {
		if got := Depth(parse(t, v)); got != want {
			t.Errorf("depth of %s: got %d, want %d", v, got, want)
		}
	}
}

func TestCorruptInput(t *testing.T) {
	good, bad := parseDoc(t, `{"_id": 1}`), bson.Raw{9, 0, 0, 0, 1, 2, 3, 4, 0}
	for _, err := range []error{
		second(Apply(bad, parse(t, `[]`))),
		second(Apply(nil, parse(t, `[]`))),
		second(Apply(good, bson.RawValue{Type: bson.TypeArray, Value: bad})),
		second(Apply(good, bson.RawValue{Type: bson.TypeEmbeddedDocument})),
		CheckStatement(bson.RawValue{Type: bson.TypeArray, Value: bad}),
	} {
		if _, ok := errors.AsType[*rawbson.CorruptError](err); !ok {
			t.Errorf("got %v, want a corrupt document", err)
		}
	}
}

func TestCodeNames(t *testing.T) {
	for code, want := range map[int]string{
		2: "BadValue", 9: "FailedToParse", 14: "TypeMismatch", 15: "Overflow", 28: "PathNotViable", 40: "ConflictingUpdateOperators",
		52: "DollarPrefixedFieldName", 53: "InvalidIdField", 54: "NotSingleValueField", 55: "InvalidDBRef", 56: "EmptyFieldName",
		66: "ImmutableField", 72: "InvalidOptions", 146: "ExceededMemoryLimit", 168: "InvalidPipelineOperator", 10334: "BSONObjectTooLarge",
		34: "CannotBackfillArray", 40324: "Location40324",
	} {
		if got := refuse(code, "x").Code.String(); got != want {
			t.Errorf("code %d: got %s, want %s", code, got, want)
		}
	}
}

// TestWaysToSet checks that three ways to set one field give the same document
// whatever its shape, and that none of them changes its inputs.
func TestWaysToSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.StringMatching(`[a-e]`), rapid.ID[string]).Draw(t, "names")
		elements := bsoncore.AppendInt32Element(nil, "_id", 1)
		for _, name := range names {
			elements = bsoncore.AppendInt32Element(elements, name, rapid.Int32().Draw(t, "old"))
		}
		doc := bson.Raw(bsoncore.BuildDocument(nil, elements))
		before := bytes.Clone(doc)
		name := rapid.StringMatching(`[a-g]`).Draw(t, "name")
		var results []string
		for _, u := range []string{
			`{"$set": {"NAME": 7}}`,
			`[{"$set": {"NAME": 7}}]`,
			`[{"$unset": "NAME"}, {"$addFields": {"NAME": 7}}]`,
			`[{"$replaceWith": {"$setField": {"field": "NAME", "input": "$$ROOT", "value": 7}}}]`,
			`[{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"NAME": 7}]}}]`,
		} {
			got, err := Apply(doc, parse(t, strings.ReplaceAll(u, "NAME", name)))
			if err != nil {
				t.Fatalf("%s: %v", u, err)
			}
			results = append(results, show(got))
			if results[0] != show(got) {
				t.Fatalf("%s differs:\n%s", u, cmp.Diff(results[0], show(got)))
			}
		}
		if !bytes.Equal(before, doc) {
			t.Fatal("the stored document was changed")
		}
	})
}

// FuzzApply feeds arbitrary bytes: no panic, and what comes out is a document
// with the same _id.
func FuzzApply(f *testing.F) {
	add := func(doc, u string) {
		f.Add([]byte(parseDoc(f, doc)), parse(f, u).Value, strings.HasPrefix(u, "["))
	}
	add(evalDoc, `[{"$set": {"a.b": {"$cond": [{"$isArray": "$l"}, 1, "$$REMOVE"]}}}, {"$unset": ["l.x", "a"]}]`)
	add(evalDoc, `[{"$replaceWith": {"$setField": {"field": "p", "input": "$$ROOT", "value": {"$map": {"input": {"$range": [0, 3]}, "in": {"$arrayElemAt": ["$l", "$$this"]}}}}}}]`)
	add(evalDoc, `[{"$set": {"r": {"$filter": {"input": "$l", "as": "p", "cond": {"$not": {"$in": ["$$p", ["a", 3]]}}}}}}]`)
	add(evalDoc, `[{"$replaceRoot": {"newRoot": {"$mergeObjects": ["$a", {"$let": {"vars": {"q": 1}, "in": {"z": "$$q"}}}]}}}]`)
	add(evalDoc, `[{"$set": {"r": {"$cond": [{"$lt": ["$i", {"$add": ["$g", "$d"]}]}, {"$slice": ["$l", 1, 2]}, {"$max": ["$i", "$m"]}]}}}]`)
	add(evalDoc, `{"$set": {"a.b.c": 1, "l.7": 2, "l.0.x": 3}, "$unset": {"s": 1}, "$push": {"e": {"$each": [1, 2], "$slice": 1}}}`)
	add(evalDoc, `{"_id": 1, "x": {"$y": 1}}`)
	f.Fuzz(func(t *testing.T, doc, u []byte, pipeline bool) {
		v := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: u}
		if pipeline {
			v.Type = bson.TypeArray
		}
		_ = CheckStatement(v)
		before := bytes.Clone(doc)
		got, err := Apply(doc, v)
		if !bytes.Equal(doc, before) {
			t.Fatal("the stored document was changed")
		}
		if err != nil {
			return
		}
		if err := rawbson.Validate(got); err != nil {
			t.Fatalf("result %x: %v", got, err)
		}
		if err := checkID(doc, got); err != nil && !bytes.Equal(doc, got) {
			t.Fatalf("result %x: %v", got, err)
		}
	})
}

// TestNoDollars: a server before 5.0 refuses names with a dollar in what replacements and pipelines make, at any depth but in
// references; modifiers of other fields, and inserts, leave them as they are.
func TestNoDollars(t *testing.T) {
	const doc = `{"_id": 1, "q": {"$gt": 5}}`
	for _, tt := range []struct {
		name, u string
		refused bool
	}{
		{"replacement", `{"q": [{"$gt": 6}]}`, true},
		{"pipeline that changes another field", `[{"$set": {"x": 1}}]`, true},
		{"pipeline that removes it", `[{"$unset": ["q"]}]`, false},
		{"modifiers of another field", `{"$set": {"x": 1}}`, false},
		{"modifiers that write one", `{"$set": {"x": {"y": [{"$lt": 1}]}}}`, true},
		{"modifiers that write one in a new field", `{"$set": {"x.y": {"$lt": 1}}}`, true},
		{"modifiers that change it", `{"$set": {"q.$gt": 6}}`, true},
		{"modifiers that append it", `{"$push": {"l": {"$lt": 1}}}`, true},
		{"modifiers that append elsewhere", `{"$push": {"l": {"lt": 1}}}`, false},
		{"modifiers that write a reference", `{"$set": {"x": {"$ref": "c", "$id": 1}}}`, false},
		{"modifiers that remove it", `{"$unset": {"q": 1}}`, false},
		{"reference", `{"r": {"$ref": "c", "$id": 1, "$db": "d"}}`, false},
		{"reference after another field", `{"r": {"x": 1, "$ref": "c", "$id": 1}}`, false},
		{"reference to nothing", `{"r": {"$ref": "#/definitions/r"}}`, true},
		{"modifiers that write half of a reference", `{"$set": {"r": {"$id": 1}}}`, true},
		{"modifiers that write the other half", `{"$set": {"q.$ref": "c"}}`, true},
		{"the same", `{"_id": 1, "q": {"$gt": 5}}`, false},
	} {
		_, err := Options{NoDollars: true}.Apply(parseDoc(t, doc), parse(t, tt.u))
		code := codeDollarPrefixedFieldName
		if strings.Contains(tt.u, "$ref") || strings.Contains(tt.u, "$id") {
			code = codeInvalidDBRef
		}
		if fault, _ := errors.AsType[*Error](err); (fault != nil && int(fault.Code) == code) != tt.refused || err != nil && !tt.refused {
			t.Errorf("%s: %v", tt.name, err)
		}
		if _, err := (Options{}).Apply(parseDoc(t, doc), parse(t, tt.u)); err != nil {
			t.Errorf("%s, from 5.0 on: %v", tt.name, err)
		}
	}
	if _, err := (Options{NoDollars: true}).CheckInsert(parseDoc(t, doc)); err != nil {
		t.Errorf("insert: %v", err)
	}
	top := parseDoc(t, `{"_id": 1, "$ref": 5}`)
	if _, err := (Options{}).CheckInsert(top); err != nil {
		t.Errorf("insert of a name at the top level, from 5.0 on: %v", err)
	}
	_, err := (Options{NoDollars: true}).CheckInsert(top)
	if fault, _ := errors.AsType[*Error](err); fault == nil || int(fault.Code) != codeBadValue {
		t.Errorf("insert of a name at the top level: %v", err)
	}
}
