package command

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestApplyOplogUpdate(t *testing.T) {
	for _, version := range []string{"4.4.29", "5.0.7"} {
		m := newMember(t, version)
		m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
		m.want(t, `{update: "c", updates: [{q: {_id: 1}, u: [{$_internalApplyOplogUpdate: {oplogUpdate: {$v: 2, diff: {u: {a: 1}}}}}]}], $db: "d"}`,
			`{ok: 0.0, errmsg: "Unrecognized pipeline stage name: '$_internalApplyOplogUpdate'", code: 40324, codeName: "Location40324"}`)
	}
	for _, version := range []string{"6.0.13", "7.0.5", "8.0.0"} {
		t.Run(version, func(t *testing.T) {
			m := newMember(t, version)
			m.run(t, `{insert: "c", documents: [{_id: 1, a: 1, long: "a field that is long enough for a delta to be smaller", list: [1, 2, 3]}, {_id: 2}], $db: "d"}`)
			apply := func(o string) string { return `[{$_internalApplyOplogUpdate: {oplogUpdate: ` + o + `}}]` }
			delta := `{$v: 2, diff: {u: {a: 2}, i: {b: {c: 1}}, slist: {a: true, l: 2, u1: 9}}}`
			m.want(t, `{update: "c", updates: [{q: {_id: 1}, u: `+apply(delta)+`}, {q: {_id: 2}, u: `+apply(`{$v: 2, diff: {i: {x: 1}}}`)+`}], $db: "d"}`,
				`{n: 2, nModified: 2, ok: 1.0}`)
			m.want(t, `{update: "c", updates: [{q: {_id: 1}, u: `+apply(delta)+`}], $db: "d"}`, `{n: 1, nModified: 0, ok: 1.0}`)
			m.want(t, `{update: "c", updates: [{q: {_id: 3}, u: `+apply(delta)+`}], $db: "d"}`, `{n: 0, nModified: 0, ok: 1.0}`)
			m.run(t, `{update: "c", updates: [{q: {_id: 4}, u: `+apply(`{$v: 2, diff: {i: {x: 4}}}`)+`, upsert: true}], $db: "d"}`)
			const txn = `lsid: {id: {$binary: {base64: "AAAAAAAAAAAAAAAAAAAAAQ==", subType: "04"}}}, txnNumber: {$numberLong: "1"}, autocommit: false`
			m.want(t, `{update: "c", updates: [{q: {_id: 2}, u: `+apply(`{$v: 2, diff: {u: {x: 2}}}`)+`}], `+txn+`, startTransaction: true, $db: "d"}`,
				`{n: 1, nModified: 1, ok: 1.0}`)
			m.run(t, `{commitTransaction: 1, `+txn+`, $db: "admin"}`)
			got := m.run(t, `{find: "c", sort: {_id: 1}, $db: "d"}`).Lookup("cursor", "firstBatch")
			want := parse(t, `{x: [{_id: 1, a: 2, long: "a field that is long enough for a delta to be smaller", list: [1, 9], b: {c: 1}}, {_id: 2, x: 2}, {_id: 4, x: 4}]}`).Lookup("x")
			if got.String() != want.String() {
				t.Errorf("the documents are %s\nwant %s", got, want)
			}
			log := extJSON(t, bson.D{{Key: "log", Value: m.logged(t, "d.c")}})
			for _, want := range []string{
				`{"op":"u","o":{"$v":2,"diff":{"u":{"a":2,"list":[1,9]},"i":{"b":{"c":1}}}}}`,
				`{"op":"i","o":{"_id":4,"x":4}}`,
			} {
				if strings.Count(log, want) != 1 {
					t.Errorf("%s is not in the log once: %s", want, log)
				}
			}
			for _, tc := range []struct {
				u    string
				code int32
			}{
				{`[{$_internalApplyOplogUpdate: {oplogUpdate: {$v: 2, diff: {bogus: 1}}}}]`, 9},
				{`[{$_internalApplyOplogUpdate: 1}]`, 9},
				{`[{$_internalApplyOplogUpdate: {oplogUpdate: {$v: 1, $set: {a: 3}}}}]`, 4772600},
				{`[{$_internalApplyOplogUpdate: {oplogUpdate: {$set: {a: 3}}}}]`, 4772600},
				{`[{$_internalApplyOplogUpdate: {x: 1}}]`, 9},
				{`[{$_internalApplyOplogUpdate: {oplogUpdate: {_id: 7}}}]`, 66},
				{`[{$set: {a: 1}}, {$_internalApplyOplogUpdate: {oplogUpdate: {$v: 2, diff: {u: {a: 1}}}}}]`, 238},
			} {
				reply := m.run(t, `{update: "c", updates: [{q: {_id: 1}, u: `+tc.u+`}], $db: "d"}`)
				code, ok := reply.Lookup("code").AsInt64OK()
				if !ok {
					code, _ = reply.Lookup("writeErrors", "0", "code").AsInt64OK()
				}
				if int32(code) != tc.code {
					t.Errorf("%s: %s, want code %d", tc.u, reply, tc.code)
				}
			}
		})
	}
}
