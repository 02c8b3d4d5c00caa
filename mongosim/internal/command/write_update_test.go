package command

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The server logs what a pipeline or a replacement made before it puts _id in front
// (object_replace_executor.cpp, pipeline_executor.cpp; measured on 5.0.7), and what
// it stores has _id in front all the same.
func TestUpdatesThatMoveID(t *testing.T) {
	big := strings.Repeat("x", 200)
	for _, tc := range []struct {
		name, u, o, id, stored string
		modified               string
	}{
		{
			"a large field in front", `[{$replaceWith: {$mergeObjects: [{big: "$big"}, "$$ROOT"]}}]`,
			`{"$v":2,"diff":{"i":{"_id":1,"a":2,"b":3}}}`, `1`, `{"_id":1,"big":"B","a":2,"b":3}`, `1`,
		},
		{
			"a new field in front, larger than what is behind", `[{$replaceWith: {$mergeObjects: [{new: 1}, "$$ROOT"]}}]`,
			`{"new":1,"_id":1,"a":2,"big":"B","b":3}`, `1`, `{"_id":1,"new":1,"a":2,"big":"B","b":3}`, `1`,
		},
		{
			"behind everything", `[{$replaceWith: {a: "$a", big: "$big", b: "$b", _id: "$_id"}}]`,
			`{"$v":2,"diff":{"i":{"_id":1}}}`, `1`, `{"_id":1,"a":2,"big":"B","b":3}`, `1`,
		},
		{
			"left out", `[{$unset: ["_id", "a"]}]`,
			`{"$v":2,"diff":{"d":{"_id":false,"a":false}}}`, `1`, `{"_id":1,"big":"B","b":3}`, `1`,
		},
		{
			"left out, of a document that is replaced", `[{$replaceWith: {b: 4}}]`,
			`{"_id":1,"b":4}`, `1`, `{"_id":1,"b":4}`, `1`,
		},
		{
			"of another type", `[{$set: {_id: {$add: ["$_id", 0.0]}}}]`,
			`{"$v":2,"diff":{"u":{"_id":1.0}}}`, `1.0`, `{"_id":1.0,"a":2,"big":"B","b":3}`, `1`,
		},
		{
			"in a replacement", `{a: 5, _id: 1}`,
			`{"a":5,"_id":1}`, `1`, `{"_id":1,"a":5}`, `1`,
		},
		{"where it is", `[{$replaceWith: {_id: "$_id", a: "$a", big: "$big", b: "$b"}}]`, ``, ``, `{"_id":1,"a":2,"big":"B","b":3}`, `0`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMember(t, "5.0.7")
			m.run(t, `{insert: "c", documents: [{_id: 1, a: 2, big: "`+big+`", b: 3}], $db: "d"}`)
			m.want(t, `{update: "c", updates: [{q: {_id: 1}, u: `+tc.u+`}], $db: "d"}`, `{n: 1, nModified: `+tc.modified+`, ok: 1.0}`)
			text := func(doc bson.Raw) string { return strings.ReplaceAll(extJSON(t, doc), big, "B") }
			if got := text(m.run(t, `{find: "c", $db: "d"}`).Lookup("cursor", "firstBatch", "0").Document()); got != tc.stored {
				t.Errorf("stored is %s, want %s", got, tc.stored)
			}
			all := m.entries(t)
			last := all[len(all)-1]
			if tc.o == "" {
				if op := last.Lookup("op").StringValue(); op != "i" {
					t.Errorf("logged is %s", last)
				}
				return
			}
			if o, o2 := text(last.Lookup("o").Document()), text(last.Lookup("o2").Document()); o != tc.o || o2 != `{"_id":`+tc.id+`}` {
				t.Errorf("logged is %s of %s, want %s of _id %s", o, o2, tc.o, tc.id)
			}
			m.want(t, `{count: "c", query: {_id: 1}, $db: "d"}`, `{n: 1, ok: 1.0}`)
		})
	}
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
	for _, u := range []string{`{$set: {_id: 1.0}}`, `{$set: {_id: 2}}`, `[{$set: {_id: 2}}]`, `{_id: 2}`} {
		reply := m.run(t, `{update: "c", updates: [{q: {}, u: `+u+`}], $db: "d"}`)
		if code, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK(); code != 66 {
			t.Errorf("%s: %s", u, reply)
		}
	}
	m.want(t, `{update: "c", updates: [{q: {}, u: {$set: {_id: 1}}}], $db: "d"}`, `{n: 1, nModified: 0, ok: 1.0}`)
}

// TestUpdateOfSpelling: by a collation two spellings are one _id, which a filter finds
// in either; but no update puts the one in place of the other.
func TestUpdateOfSpelling(t *testing.T) {
	t.Parallel()
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "c", collation: {locale: "en", strength: 2}, $db: "d"}`)
	m.run(t, `{insert: "c", documents: [{_id: "a", v: 1}], $db: "d"}`)
	for _, u := range []string{`{_id: "A", v: 2}`, `{$set: {_id: "A"}}`, `[{$replaceWith: {$literal: {_id: "A"}}}]`} {
		reply := m.run(t, `{update: "c", updates: [{q: {_id: "A"}, u: `+u+`, upsert: true}], $db: "d"}`)
		if code, _ := reply.Lookup("writeErrors", "0", "code").AsInt64OK(); code != 66 {
			t.Errorf("%s: %s", u, reply)
		}
	}
	m.want(t, `{update: "c", updates: [{q: {_id: "A"}, u: {$set: {v: 3}}}], $db: "d"}`, `{n: 1, nModified: 1, ok: 1.0}`)
	m.want(t, `{delete: "c", deletes: [{q: {_id: "A"}, limit: 1}], $db: "d"}`, `{n: 1, ok: 1.0}`)
}
