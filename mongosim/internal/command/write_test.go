package command

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/write"
)

// TestByID: a filter that is an _id finds what the same one does in another form,
// whatever type the value is of.
func TestByID(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "folded", collation: {locale: "en", strength: 2}, $db: "d"}`)
	values := []string{
		`1`, `{$numberLong: "2"}`, `3.5`, `{$numberDecimal: "4"}`, `"a"`, `"A"`, `null`, `true`, `{a: 1}`, `{$oid: "5f0000000000000000000001"}`,
		`{$date: {$numberLong: "5"}}`, `{$binary: {base64: "AQID", subType: "04"}}`, `{$timestamp: {t: 1, i: 2}}`, `{$minKey: 1}`,
	}
	others := []string{
		`1.0`, `{$numberLong: "1"}`, `2`, `4`, `{$regularExpression: {pattern: "a", options: ""}}`, `{$gt: 3}`, `{$in: [1, 2]}`, `[1]`, `"b"`, `{}`, `{$eq: "a"}`,
	}
	for _, coll := range []string{"plain", "folded"} {
		for _, v := range values {
			if reply := m.run(t, `{insert: "`+coll+`", documents: [{_id: `+v+`}], $db: "d"}`); reply.Lookup("n").Int32() != 1 && (coll != "folded" || v != `"A"`) {
				t.Fatalf("%s: %s", v, reply)
			}
		}
		for _, v := range append(others, values...) {
			var n [2]int32
			for i, filter := range []string{`{_id: ` + v + `}`, `{$and: [{_id: ` + v + `}]}`} {
				n[i] = m.run(t, `{update: "`+coll+`", updates: [{q: `+filter+`, u: {$inc: {n: 1}}, multi: true}], $db: "d"}`).Lookup("n").Int32()
			}
			if n[0] != n[1] {
				t.Errorf("%s: _id %s found %d, in another form %d", coll, v, n[0], n[1])
			}
		}
	}
	for _, v := range []string{`"b"`, `7`} { // upserts by a filter that matches nothing
		m.want(t, `{update: "plain", updates: [{q: {_id: `+v+`}, u: {$set: {n: 1}}, upsert: true}], $db: "d"}`,
			`{n: 1, upserted: [{index: 0, _id: `+v+`}], nModified: 0, ok: 1.0}`)
		m.want(t, `{delete: "plain", deletes: [{q: {_id: `+v+`}, limit: 0}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	}
}

func TestWriteErrors(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{createIndexes: "u", indexes: [{key: {k: 1}, name: "k_1", unique: true}], $db: "d"}`)
	m.run(t, `{create: "v", viewOn: "u", pipeline: [], $db: "d"}`)
	m.run(t, `{create: "cap", capped: true, size: 4096, $db: "d"}`)
	m.run(t, `{insert: "cap", documents: [{_id: 1, s: "abc"}], $db: "d"}`)
	dup := func(index int, key string, v int) string {
		name := map[string]string{"_id": "_id_", "k": "k_1"}[key]
		return fmt.Sprintf(`{index: %d, code: 11000, keyPattern: {%s: 1}, keyValue: {%s: %d}, errmsg: "E11000 duplicate key error collection: d.u index: %s dup key: { %s: %d }"}`,
			index, key, key, v, name, key, v)
	}
	view := `writeErrors: [{index: 0, code: 166, errmsg: "Namespace d.v is a view, not a collection"}]`
	for _, tc := range []struct{ cmd, reply string }{
		{`{insert: "u", documents: [{_id: 1, k: 1}, {_id: 2, k: 2}]`, `{n: 2`},
		{`{insert: "u", documents: [{_id: 3, k: 3}, {_id: 1, k: 4}, {_id: 4, k: 4}]`, `{n: 1, writeErrors: [` + dup(1, "_id", 1) + `]`},
		{
			`{insert: "u", ordered: false, documents: [{_id: 1, k: 5}, {_id: [1]}, {_id: 5, k: 5}, {_id: 6, k: 5}, {_id: 7, k: 7}]`,
			`{n: 2, writeErrors: [` + dup(0, "_id", 1) + `, {index: 1, code: 53, errmsg: "The '_id' value cannot be of type array"}, ` + dup(3, "k", 5) + `]`,
		},
		{
			`{update: "u", ordered: false, updates: [{q: {_id: 1}, u: {$set: {k: 2}}}, {q: {_id: 50}, u: {$set: {k: 50}}, upsert: true}, {q: {_id: 2}, u: {$set: {k: 2}}}]`,
			`{n: 2, writeErrors: [` + dup(0, "k", 2) + `], upserted: [{index: 1, _id: 50}], nModified: 0`,
		},
		{`{insert: "v", documents: [{_id: 1}]`, `{n: 0, ` + view},
		{`{update: "v", updates: [{q: {}, u: {$set: {a: 1}}}]`, `{n: 0, ` + view + `, nModified: 0`},
		{`{delete: "v", deletes: [{q: {}, limit: 0}]`, `{n: 0, ` + view},
		{
			`{update: "cap", updates: [{q: {_id: 1}, u: {$set: {s: "abcd"}}}]`,
			`{n: 0, writeErrors: [{index: 0, code: 10003, errmsg: "Cannot change the size of a document in a capped collection: 25 != 26"}], nModified: 0`,
		},
		{`{update: "cap", updates: [{q: {_id: 1}, u: {$set: {s: "xyz"}}}]`, `{n: 1, nModified: 1`},
		{
			`{delete: "cap", deletes: [{q: {_id: 1}, limit: 1}]`,
			`{n: 0, writeErrors: [{index: 0, code: 20, errmsg: "cannot remove from a capped collection: d.cap"}]`,
		},
		{
			`{update: "u", updates: [{q: {_id: 1}, u: {$set: {x: 1}}, hint: "nope_1"}]`,
			`{n: 0, writeErrors: [{index: 0, code: 2, errmsg: "error processing query: ns=d.uTree: _id $eq 1\nSort: {}\nProj: {}\n planner returned error :: caused by :: hint provided does not correspond to an existing index"}], nModified: 0`,
		},
		{`{delete: "u", deletes: [{q: {k: {$gte: 5}}, limit: 0}]`, `{n: 3`},
	} {
		m.want(t, tc.cmd+`, $db: "d"}`, tc.reply+`, ok: 1.0}`)
	}
	for cmd, want := range map[string]string{
		`{insert: "u", documents: [], `:                                    "Write batch sizes must be between 1 and 100000. Got 0 operations.",
		`{delete: "u", deletes: [{q: {}, limit: 2}], `:                     "The limit field in delete objects must be 0 or 1. Got 2",
		`{delete: "u", deletes: [{q: {}}], `:                               "BSON field 'delete.deletes.limit' is missing but a required field",
		`{update: "u", updates: [{q: {}, u: {}, x: 1}], `:                  "BSON field 'update.updates.x' is an unknown field.",
		`{update: "u", updates: [{q: {}}], `:                               "BSON field 'update.updates.u' is missing but a required field",
		`{update: "u", updates: [{q: {}, u: [{$bogus: 1}]}], `:             "Unrecognized pipeline stage name: '$bogus'",
		`{insert: "u", documents: [{}], stmtIds: [1, 2], `:                 "Number of statement ids must match the number of batch entries. Got 2 statement ids but 1 operations.",
		`{findAndModify: "u", query: {}, `:                                 "Either an update or remove=true must be specified",
		`{findAndModify: "u", remove: true, new: true, `:                   "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document",
		`{findAndModify: "u", query: {_id: 1}, update: {$inc: {k: "x"}}, `: `Cannot increment with non-numeric argument: {k: "x"}`,
		`{findAndModify: "u", query: {_id: 1}, update: {$push: {k: 1}}, `:  "Plan executor error during findAndModify :: caused by :: The field 'k' must be an array but is of type int in document {_id: 1}",
	} {
		if r := m.run(t, cmd+`$db: "d"}`); r.Lookup("errmsg").StringValue() != want {
			t.Errorf("%s: %s\nwant %s", cmd, r, want)
		}
	}
}

func TestValidators(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "strict", validator: {x: {$exists: true}}, $db: "d"}`)
	m.run(t, `{create: "moderate", validator: {x: {$exists: true}}, validationLevel: "moderate", $db: "d"}`)
	m.run(t, `{create: "warn", validator: {x: {$exists: true}}, validationAction: "warn", $db: "d"}`)
	failed := `code: 121, errInfo: {failingDocumentId: 1, details: {operatorName: "$exists", specifiedAs: {x: {$exists: true}}, reason: "path does not exist"}}, errmsg: "Document failed validation"`
	m.want(t, `{insert: "strict", documents: [{_id: 1}], $db: "d"}`, `{n: 0, writeErrors: [{index: 0, `+failed+`}], ok: 1.0}`)
	m.want(t, `{insert: "warn", documents: [{_id: 1}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	for _, coll := range []string{"strict", "moderate"} {
		m.want(t, `{insert: "`+coll+`", bypassDocumentValidation: true, documents: [{_id: 1}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	}
	update := func(coll string) string {
		return `{update: "` + coll + `", updates: [{q: {_id: 1}, u: {$set: {y: 1}}}], $db: "d"}`
	}
	m.want(t, update("strict"), `{n: 0, writeErrors: [{index: 0, `+failed+`}], nModified: 0, ok: 1.0}`)
	m.want(t, update("moderate"), `{n: 1, nModified: 1, ok: 1.0}`)
	m.run(t, `{collMod: "strict", validator: {}, $db: "d"}`)
	m.want(t, update("strict"), `{n: 1, nModified: 1, ok: 1.0}`)
}

func TestFindAndModify(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{_id: 1, n: 3, a: [1, 2]}, {_id: 2, n: 1, a: [3]}, {_id: 3, n: 2}], $db: "d"}`)
	for _, tc := range []struct{ args, reply string }{
		{`sort: {n: 1}, update: {$set: {x: 1}}, new: true`, `{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 2, n: 1, a: [3], x: 1}`},
		{`sort: {n: -1}, remove: true, fields: {_id: 0, n: 1}`, `{lastErrorObject: {n: 1}, value: {n: 3}`},
		{`query: {a: 3}, update: {$set: {"a.$": 4}}`, `{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 2, n: 1, a: [3], x: 1}`},
		{`query: {_id: 2}, update: [{$set: {a: "$n"}}], new: true`, `{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 2, n: 1, a: 1, x: 1}`},
		{`query: {_id: 9}, update: {$set: {x: 1}}`, `{lastErrorObject: {n: 0, updatedExisting: false}, value: null`},
		{`query: {_id: 9}, remove: true`, `{lastErrorObject: {n: 0}, value: null`},
		{`query: {_id: 9}, update: {$set: {x: 1}}, upsert: true`, `{lastErrorObject: {n: 1, updatedExisting: false, upserted: 9}, value: null`},
		{`query: {_id: 8}, update: {x: 2}, upsert: true, new: true`, `{lastErrorObject: {n: 1, updatedExisting: false, upserted: 8}, value: {_id: 8, x: 2}`},
		{`query: {_id: 2}, update: {$set: {a: [{i: 1}, {i: 2}]}}`, `{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 2, n: 1, a: 1, x: 1}`},
		{`query: {_id: 2}, update: {$set: {"a.$[e].i": 5}}, arrayFilters: [{"e.i": {$gt: 1}}], new: true, fields: {a: 1}`, `{lastErrorObject: {n: 1, updatedExisting: true}, value: {_id: 2, a: [{i: 1}, {i: 5}]}`},
	} {
		m.want(t, `{findAndModify: "c", `+tc.args+`, $db: "d"}`, tc.reply+`, ok: 1.0}`)
	}
}

// TestRetriesAreAnsweredNotExecuted repeats each command, with all that the
// server keeps in memory forgotten, and expects the first answer again.
func TestRetriesAreAnsweredNotExecuted(t *testing.T) {
	for _, version := range []string{"4.4.10", "5.0.7", "7.0.2", "8.0.1"} {
		t.Run(version, func(t *testing.T) {
			m := newMember(t, version)
			m.run(t, `{insert: "c", documents: [{_id: 0, n: 0}, {_id: 10, n: 0}, {_id: 11}], $db: "d"}`)
			for i, cmd := range []string{
				`{insert: "c", documents: [{_id: 1}, {_id: 2}, {_id: 3}]`,
				`{insert: "c", documents: [{_id: 4}, {_id: 5}], stmtIds: [7, 9]`,
				`{update: "c", updates: [{q: {_id: 0}, u: {$inc: {n: 1}}}, {q: {_id: 20}, u: {$inc: {n: 1}}, upsert: true}]`,
				`{delete: "c", deletes: [{q: {_id: 11}, limit: 1}]`,
				`{findAndModify: "c", query: {_id: 0}, update: {$inc: {n: 1}}`,
				`{findAndModify: "c", query: {_id: 0}, update: {$inc: {n: 1}}, new: true`,
				`{findAndModify: "c", query: {_id: 30}, update: {$inc: {n: 1}}, new: true, upsert: true`,
				`{findAndModify: "c", query: {_id: 10}, remove: true`,
			} {
				cmd += fmt.Sprintf(`, txnNumber: {$numberLong: "%d"}, %s, $db: "d"}`, i+1, sessionA)
				first := m.run(t, cmd)
				entries := len(m.entries(t))
				for _, forget := range []bool{false, true} {
					if forget {
						m.RolledBack()
					}
					again := m.run(t, cmd)
					retried := again.Lookup("retriedStmtIds").Type != 0 || again.Lookup("retriedStmtId").Type != 0
					if retried != (version >= "5.1") {
						t.Errorf("%s\n%s: retriedStmtIds is there: %t", cmd, again, retried)
					}
					if got, want := lasting(without(t, again, "retriedStmtIds", "retriedStmtId")), lasting(first); got != want {
						t.Errorf("%s\n first %s\nsecond %s", cmd, want, got)
					}
				}
				if n := len(m.entries(t)); n != entries {
					t.Errorf("%s: %d entries more after retries", cmd, n-entries)
				}
			}
			r := m.run(t, `{insert: "c", documents: [{_id: 99}], txnNumber: {$numberLong: "3"}, `+sessionA+`, $db: "d"}`)
			want := "Retryable write with txnNumber 3 is prohibited on session 00000000-0000-4000-8000-00000000000a - " +
				"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= "
			if msg := r.Lookup("errmsg").StringValue(); r.Lookup("code").Int32() != 225 || !strings.HasPrefix(msg, want) {
				t.Errorf("an older number: %s", r)
			}
			// A part of a batch that was executed is not executed again.
			r = m.run(t, `{insert: "c", documents: [{_id: 3}, {_id: 40}, {_id: 41}], stmtIds: [0, 1, 2], txnNumber: {$numberLong: "20"}, `+sessionB+`, $db: "d"}`)
			if r.Lookup("n").Int32() != 0 {
				t.Fatalf("%s", r)
			}
			m.run(t, `{insert: "c", documents: [{_id: 40}], stmtIds: [1], txnNumber: {$numberLong: "21"}, `+sessionB+`, $db: "d"}`)
			r = m.run(t, `{insert: "c", documents: [{_id: 42}, {_id: 40}, {_id: 41}], txnNumber: {$numberLong: "21"}, `+sessionB+`, $db: "d"}`)
			if r.Lookup("n").Int32() != 3 || r.Lookup("writeErrors").Type != 0 {
				t.Errorf("the rest of a batch: %s", r)
			}
		})
	}
}

func without(t testing.TB, doc bson.Raw, fields ...string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.Unmarshal(doc, &d); err != nil {
		t.Fatal(err)
	}
	var out bson.D
	for _, e := range d {
		if !strings.Contains(" "+strings.Join(fields, " ")+" ", " "+e.Key+" ") {
			out = append(out, e)
		}
	}
	return marshal(t, out)
}

func TestBigBatchesLetOthersIn(t *testing.T) {
	m := newMember(t, "5.0.7")
	docs := make(bson.A, 3*write.Chunk+17)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}}
	}
	send := func(cmd bson.D) bson.Raw {
		return m.CallOn(t.Context(), m.conn, marshal(t, append(cmd, bson.E{Key: "$db", Value: "d"})))
	}
	r := send(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
	if int(r.Lookup("n").Int32()) != len(docs) {
		t.Fatal(r)
	}
	r = m.run(t, `{update: "c", updates: [{q: {n: 0}, u: {$inc: {n: 1}}, multi: true}, {q: {_id: 1}, u: {$inc: {n: 1}}}], $db: "d"}`)
	if int(r.Lookup("n").Int32()) != len(docs)+1 || int(r.Lookup("nModified").Int32()) != len(docs)+1 {
		t.Errorf("%s, want %d", r, len(docs)+1)
	}
	r = m.run(t, `{delete: "c", deletes: [{q: {n: 1}, limit: 0}], $db: "d"}`)
	if int(r.Lookup("n").Int32()) != len(docs)-1 {
		t.Errorf("%s, want %d", r, len(docs)-1)
	}
	var last bson.Raw
	for _, e := range m.entries(t) {
		if last != nil && string(last[4:]) == string(e[4:]) {
			t.Fatalf("the same entry twice: %s", e)
		}
		last = e
	}
}
