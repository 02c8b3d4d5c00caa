package bsongen

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// OperatorDelta draws the diff that a server may log for an update of doc by
// operators, which it does not compute from two documents: it goes only
// through existing fields, inserts only missing ones, and sets array elements
// wherever the operators do, beyond the end too.
func OperatorDelta(t *rapid.T, doc bson.Raw) bson.Raw { return operatorDelta(t, doc, 1) }

func operatorDelta(t *rapid.T, doc bson.Raw, depth int) bson.Raw {
	var d, u, i, subs bson.D
	elems, _ := doc.Elements()
	for _, e := range elems {
		if e.Key() == "_id" && depth == 1 {
			continue
		}
		switch rapid.IntRange(0, 4).Draw(t, "operator") {
		case 0:
			d = append(d, bson.E{Key: e.Key(), Value: false})
		case 1:
			u = append(u, bson.E{Key: e.Key(), Value: Value(t, 3)})
		case 2, 3:
			if inner := operatorSubDelta(t, e.Value(), depth); inner != nil {
				subs = append(subs, bson.E{Key: "s" + e.Key(), Value: inner})
			}
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "new fields") {
		name := Name(t)
		_, err := doc.LookupErr(name)
		if err != nil && !slices.ContainsFunc(i, func(e bson.E) bool { return e.Key == name }) {
			i = append(i, bson.E{Key: name, Value: Value(t, 3)})
		}
	}
	var all bson.D
	for _, section := range []bson.E{{Key: "d", Value: d}, {Key: "u", Value: u}, {Key: "i", Value: i}} {
		if len(section.Value.(bson.D)) > 0 {
			all = append(all, section)
		}
	}
	if all = append(all, subs...); len(all) == 0 {
		all = bson.D{{Key: "d", Value: bson.D{{Key: "not there", Value: false}}}}
	}
	raw, err := bson.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// operatorSubDelta is a delta of a container, nil for any other value.
func operatorSubDelta(t *rapid.T, v bson.RawValue, depth int) any {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return operatorDelta(t, v.Value, depth+1)
	case bson.TypeArray:
	default:
		return nil
	}
	elems, _ := bson.Raw(v.Value).Elements()
	all := bson.D{{Key: "a", Value: true}}
	for n := range len(elems) + 4 {
		if !rapid.Bool().Draw(t, "element") {
			continue
		}
		if n < len(elems) {
			if inner := operatorSubDelta(t, elems[n].Value(), depth); inner != nil {
				all = append(all, bson.E{Key: "s" + strconv.Itoa(n), Value: inner})
				continue
			}
		}
		all = append(all, bson.E{Key: "u" + strconv.Itoa(n), Value: Value(t, 3)})
	}
	return all
}
