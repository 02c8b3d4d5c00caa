package update_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog/update"
)

func show(t *testing.T, name string, doc, diff bson.Raw, opt update.CompileOptions) {
	want, err := update.ApplyDelta(doc, diff)
	c, cerr := update.CompileDelta(diff, opt)
	if cerr != nil {
		fmt.Printf("%s: compile error %v (apply err %v)\n", name, cerr, err)
		return
	}
	got, gerr := serverupdate.Apply(doc, c.U)
	u := c.U.String()
	if len(u) > 300 {
		u = u[:300]
	}
	fmt.Printf("%s: depth %d emits %s\n  want %x (%v)\n  got  %x (%v) same=%v\n", name, c.Depth, u, trunc(want), err, trunc(got), gerr, string(got) == string(want))
}

func trunc(b []byte) []byte {
	if len(b) > 120 {
		return b[:120]
	}
	return b
}

func TestScratch(t *testing.T) {
	// irregular array keys
	arr := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "x", 1), bsoncore.AppendInt32Element(nil, "y", 2))
	doc := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1), bsoncore.AppendArrayElement(nil, "arr", arr), bsoncore.AppendInt32Element(nil, "a", 2))
	show(t, "irregular untouched", bson.Raw(doc), parse(t, `{"i":{"b":1}}`), update.CompileOptions{})
	show(t, "irregular untouched NewFields", bson.Raw(doc), parse(t, `{"i":{"c":1,"b":1}}`), newFields)
	show(t, "irregular in-place element", bson.Raw(doc), parse(t, `{"sarr":{"a":true,"u0":7}}`), preImage)
	// irregular inside delta value
	d := bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "u", bsoncore.BuildDocument(nil, bsoncore.AppendArrayElement(nil, "b", arr), bsoncore.AppendInt32Element(nil, "a", 1))))
	show(t, "irregular value in delta", bson.Raw(doc), bson.Raw(d), update.CompileOptions{})
	// duplicates under modifiers
	dup := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "_id", 1), bsoncore.AppendInt32Element(nil, "a", 1), bsoncore.AppendInt32Element(nil, "a", 2))
	show(t, "dup modifiers", bson.Raw(dup), parse(t, `{"u":{"a":9}}`), update.CompileOptions{})
	show(t, "dup unset", bson.Raw(dup), parse(t, `{"d":{"a":false}}`), update.CompileOptions{})
	// huge
	small := parse(t, `{"_id":1,"a":[1,2,3]}`)
	show(t, "max index u", small, parse(t, `{"sa":{"a":true,"u2147483647":1}}`), update.CompileOptions{})
	show(t, "max index u preimage pipeline", small, parse(t, `{"u":{"x":{"$q":1}},"sa":{"a":true,"u2147483647":1}}`), preImage)
	show(t, "max index s", small, parse(t, `{"sa":{"a":true,"s2147483647":{"u":{"b":1}}}}`), update.CompileOptions{})
	show(t, "max l", small, parse(t, `{"sa":{"a":true,"l":2147483647}}`), update.CompileOptions{})
	show(t, "max l preimage", small, parse(t, `{"sa":{"a":true,"l":5}}`), preImage)
	// many nested deletes/inserts
	for _, n := range []int{40, 80, 95, 120} {
		var f []string
		for i := range n {
			f = append(f, fmt.Sprintf(`"f%03d":false`, i))
		}
		show(t, fmt.Sprintf("nested deletes %d", n), small, parse(t, `{"sa":{"d":{`+strings.Join(f, ",")+`}}}`), update.CompileOptions{})
		show(t, fmt.Sprintf("nested inserts %d", n), small, parse(t, `{"sa":{"i":{`+strings.Join(f, ",")+`}}}`), preImage)
		for i := range f {
			f[i] = fmt.Sprintf(`"f.%03d":false`, i)
		}
		show(t, fmt.Sprintf("top dotted inserts %d", n), small, parse(t, `{"i":{`+strings.Join(f, ",")+`}}`), preImage)
	}
}
