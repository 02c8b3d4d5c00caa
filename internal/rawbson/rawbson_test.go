package rawbson_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// everyType is a document with a field of every BSON type.
func everyType(t testing.TB) bson.Raw {
	t.Helper()
	scope := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "n", 1))
	var b []byte
	b = bsoncore.AppendDoubleElement(b, "double", 1.5)
	b = bsoncore.AppendStringElement(b, "string", "text")
	b = bsoncore.AppendDocumentElement(b, "document", scope)
	b = bsoncore.AppendArrayElement(b, "array", bsoncore.BuildArray(nil, bsoncore.Value{Type: bsoncore.TypeNull}))
	b = bsoncore.AppendBinaryElement(b, "binary", 4, []byte("0123456789abcdef"))
	b = bsoncore.AppendUndefinedElement(b, "undefined")
	b = bsoncore.AppendObjectIDElement(b, "objectid", [12]byte{1})
	b = bsoncore.AppendBooleanElement(b, "bool", true)
	b = bsoncore.AppendDateTimeElement(b, "date", -1)
	b = bsoncore.AppendNullElement(b, "null")
	b = bsoncore.AppendRegexElement(b, "regex", "a.*", "i")
	b = bsoncore.AppendDBPointerElement(b, "dbpointer", "db.c", [12]byte{2})
	b = bsoncore.AppendJavaScriptElement(b, "code", "1")
	b = bsoncore.AppendSymbolElement(b, "symbol", "s")
	b = bsoncore.AppendCodeWithScopeElement(b, "codewscope", "2", scope)
	b = bsoncore.AppendInt32Element(b, "int32", 7)
	b = bsoncore.AppendTimestampElement(b, "timestamp", 3, 4)
	b = bsoncore.AppendInt64Element(b, "int64", -9)
	b = bsoncore.AppendDecimal128Element(b, "decimal", 1, 2)
	b = bsoncore.AppendMinKeyElement(b, "minkey")
	b = bsoncore.AppendMaxKeyElement(b, "maxkey")
	return bson.Raw(bsoncore.BuildDocument(nil, b))
}

func TestIterYieldsEveryElementInOrder(t *testing.T) {
	doc := everyType(t)
	want, err := doc.Elements()
	if err != nil {
		t.Fatal(err)
	}
	it := rawbson.NewIter(doc)
	n := 0
	for it.Next() {
		if cap(it.Key) != len(it.Key) || cap(it.Value) != len(it.Value) {
			t.Errorf("element %d: appending to a view would write into the document", n)
		}
		if it.Name() != want[n].Key() || !it.Raw().Equal(want[n].Value()) {
			t.Errorf("element %d is %s %v, want %s", n, it.Name(), it.Raw(), want[n])
		}
		n++
	}
	if err := it.Err(); err != nil || n != len(want) {
		t.Errorf("%d elements and error %v, want %d and none", n, err, len(want))
	}
	if it.Offset() != len(doc)-1 {
		t.Errorf("offset at the end is %d, want %d", it.Offset(), len(doc)-1)
	}
	if err := rawbson.Validate(doc); err != nil {
		t.Errorf("Validate: %v", err)
	}
}

// After the end, and after a fault, the Elem is still the last one.
func TestIterKeepsTheLastElement(t *testing.T) {
	whole := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(bsoncore.AppendNullElement(nil, "a"), "b", 7))
	faulty := bsoncore.BuildDocument(nil, append(bsoncore.AppendInt32Element(nil, "b", 7), 0x99, 'c', 0))
	for _, doc := range [][]byte{whole, faulty} {
		it := rawbson.NewIter(doc)
		for it.Next() {
		}
		if n, ok := it.Int64(); it.Next() || it.Name() != "b" || !ok || n != 7 {
			t.Errorf("after the last element of %x the element is %s: %x", doc, it.Name(), it.Value)
		}
	}
}

func TestAccessorsTakeTheirTypeOnly(t *testing.T) {
	it := rawbson.NewIter(everyType(t))
	for it.Next() {
		name := it.Name()
		ok := map[string]bool{}
		text, isText := it.Text()
		ok["string"] = isText && text == "text"
		_, ok["document"] = it.Document()
		_, ok["array"] = it.Array()
		subtype, data, isBinary := it.Binary()
		ok["binary"] = isBinary && subtype == 4 && string(data) == "0123456789abcdef"
		b, isBool := it.Bool()
		ok["bool"] = isBool && b
		ms, isDate := it.DateTime()
		ok["date"] = isDate && ms == -1
		ts, isTimestamp := it.Timestamp()
		ok["timestamp"] = isTimestamp && ts == bson.Timestamp{T: 3, I: 4}
		n, isWhole := it.Int64()
		ok["int32"] = isWhole && n == 7
		ok["int64"] = isWhole && n == -9
		for kind, is := range ok {
			if is != (kind == name) {
				t.Errorf("field %s read as %s: %t", name, kind, is)
			}
		}
	}
}

func TestInt64TakesWholeDoublesOnly(t *testing.T) {
	for value, want := range map[float64]bool{2: true, -3: true, 1 << 53: true, 2.5: false, 1e300: false} {
		doc := bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(nil, "n", value))
		e, _ := rawbson.Lookup(doc, "n")
		if n, ok := e.Int64(); ok != want || ok && float64(n) != value {
			t.Errorf("%g reads as %d, %t, want %t", value, n, ok, want)
		}
	}
}

func TestLookup(t *testing.T) {
	doc := bsoncore.BuildDocument(nil,
		bsoncore.AppendInt32Element(nil, "a", 1), bsoncore.AppendInt32Element(nil, "a", 2))
	if e, ok := rawbson.Lookup(doc, "a"); !ok || e.Value[0] != 1 {
		t.Errorf("Lookup gave %v, %t, want the first a", e, ok)
	}
	if _, ok := rawbson.Lookup(doc, "b"); ok {
		t.Error("Lookup found a field that is not there")
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFaultsAreFoundAndPlaced(t *testing.T) {
	// Each body is put between a length and a final zero byte.
	for _, tc := range []struct {
		name, body string
		offset     int
		what       string
	}{
		{"type 0", "00", 4, "type 0"},
		{"unknown type", "14 61 00 00", 7, "unknown type 0x14"},
		{"name without end", "10 61 62", 5, "field name without an end"},
		{"short int32", "10 61 00 01 02", 7, "ends after its document"},
		{"boolean of 2", "08 61 00 02", 7, "neither 0 nor 1"},
		{"short boolean", "08 61 00", 7, "ends after its document"},
		{"string of length 0", "02 61 00 00 00 00 00", 7, "a string with a length of 0"},
		{"negative string length", "02 61 00 ff ff ff ff 00", 7, "a length of -1"},
		{"string too long", "02 61 00 09 00 00 00 62 00", 7, "a length of 9 with 2 bytes left"},
		{"string without terminator", "02 61 00 01 00 00 00 62", 7, "without its terminator"},
		{"string cut in its length", "02 61 00 01 00", 7, "a length that ends"},
		{"document of length 4", "03 61 00 04 00 00 00", 7, "an embedded document with a length of 4"},
		{"document without terminator", "03 61 00 05 00 00 00 01", 7, "an embedded document without its terminator"},
		{"binary too long", "05 61 00 04 00 00 00 00 62", 7, "binary data with a length of 4"},
		{"regex without pattern end", "0b 61 00 62", 7, "a regular expression without an end"},
		{"regex without options end", "0b 61 00 62 00 69", 7, "options without an end"},
		{"dbpointer without its id", "0c 61 00 02 00 00 00 62 00 01", 7, "ends after its document"},
		{"dbpointer with a bad string", "0c 61 00 00 00 00 00", 7, "a string with a length of 0"},
		{"code with scope too short", "0f 61 00 0d 00 00 00", 7, "code with a length of 13"},
		{"code with a bad code", "0f 61 00 0e 00 00 00 00 00 00 00 05 00 00 00 00 00", 7, "code with scope: a string"},
		{"code with a bad scope", "0f 61 00 0e 00 00 00 01 00 00 00 00 04 00 00 00 00", 7, "code with scope: an embedded"},
		{"code with slack", "0f 61 00 0f 00 00 00 01 00 00 00 00 05 00 00 00 00 00", 7, "do not fill"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := append(append([]byte{0, 0, 0, 0}, unhex(t, tc.body)...), 0)
			binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
			it := rawbson.NewIter(doc)
			for it.Next() {
				t.Errorf("yielded %s", it.Name())
			}
			for _, err := range []error{it.Err(), rawbson.Validate(doc)} {
				fault, ok := errors.AsType[*rawbson.CorruptError](err)
				if !ok {
					t.Fatalf("error is %v, want a *CorruptError", err)
				}
				if fault.Offset != tc.offset || !strings.Contains(err.Error(), tc.what) {
					t.Errorf("error is %q, want %q at byte %d", err, tc.what, tc.offset)
				}
			}
		})
	}
}

func TestFaultsOfTheDocumentItself(t *testing.T) {
	for name, doc := range map[string][]byte{
		"nothing":         nil,
		"four bytes":      {4, 0, 0, 0},
		"length too big":  {6, 0, 0, 0, 0},
		"length too low":  {5, 0, 0, 0, 0, 0},
		"length negative": {0xff, 0xff, 0xff, 0xff, 0},
		"no terminator":   {5, 0, 0, 0, 1},
	} {
		it := rawbson.NewIter(doc)
		if it.Next() || it.Err() == nil {
			t.Errorf("%s: accepted", name)
		}
		if rawbson.Validate(doc) == nil {
			t.Errorf("%s: valid", name)
		}
	}
}

func TestValidateLooksInside(t *testing.T) {
	bad := []byte{8, 0, 0, 0, 0x14, 'x', 0, 0}
	for name, doc := range map[string][]byte{
		"document": bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "d", bad)),
		"array":    bsoncore.BuildDocument(nil, bsoncore.AppendArrayElement(nil, "d", bad)),
		"scope":    bsoncore.BuildDocument(nil, bsoncore.AppendCodeWithScopeElement(nil, "d", "", bad)),
	} {
		it := rawbson.NewIter(doc)
		if !it.Next() {
			t.Errorf("%s: the walk over the outer document failed: %v", name, it.Err())
		}
		fault, ok := errors.AsType[*rawbson.CorruptError](rawbson.Validate(doc))
		if !ok {
			t.Fatalf("%s: valid", name)
		}
		if want := strings.Index(string(doc), string(bad)) + 7; fault.Offset != want {
			t.Errorf("%s: fault at byte %d, want %d", name, fault.Offset, want)
		}
	}
}

func nested(levels int) []byte {
	doc := bsoncore.BuildDocument(nil)
	for range levels - 1 {
		doc = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "d", doc))
	}
	return doc
}

func TestValidateLimitsDepth(t *testing.T) {
	if err := rawbson.Validate(nested(rawbson.MaxDepth)); err != nil {
		t.Errorf("%d levels: %v", rawbson.MaxDepth, err)
	}
	if err := rawbson.Validate(nested(rawbson.MaxDepth + 1)); err == nil {
		t.Errorf("%d levels: valid", rawbson.MaxDepth+1)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	doc := everyType(t)
	var last string
	for it := rawbson.NewIter(doc); it.Next(); {
		last = it.Name()
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := rawbson.Lookup(doc, last); !ok {
			t.Fatalf("no %s", last)
		}
		if _, ok := rawbson.Lookup(doc, "not there"); ok {
			t.Fatal("a field that is not there was found")
		}
	}); n != 0 {
		t.Errorf("two lookups make %v allocations, want none", n)
	}
}

func TestIterAllocatesNothing(t *testing.T) {
	doc := everyType(t)
	if n := testing.AllocsPerRun(100, func() {
		it := rawbson.NewIter(doc)
		for it.Next() {
			_ = it.Name()
		}
		if it.Err() != nil || rawbson.Validate(doc) != nil {
			t.Fatal("not valid")
		}
	}); n != 0 {
		t.Errorf("a walk makes %v allocations, want none", n)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add([]byte(everyType(f)))
	f.Add(nested(3))
	f.Fuzz(func(t *testing.T, doc []byte) {
		err := rawbson.Validate(doc)
		if fault, ok := errors.AsType[*rawbson.CorruptError](err); ok && (fault.Offset < 0 || fault.Offset > len(doc)) {
			t.Errorf("fault at byte %d of %d", fault.Offset, len(doc))
		}
		// Whatever passes here the driver has to be able to take apart.
		if err == nil {
			if derr := bson.Raw(doc).Validate(); derr != nil {
				t.Errorf("valid here, but the driver says: %v", derr)
			}
		}
	})
}

func BenchmarkIter(b *testing.B) {
	doc := everyType(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		it := rawbson.NewIter(doc)
		for it.Next() {
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	doc := everyType(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		if err := rawbson.Validate(doc); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookup is of a field that is not there: all names are compared.
func BenchmarkLookup(b *testing.B) {
	doc := everyType(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		if _, ok := rawbson.Lookup(doc, "not there"); ok {
			b.Fatal("it is there")
		}
	}
}
