package command

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// step is a command and its expected outcome.
type step struct {
	// cmd is the command as Extended JSON.
	cmd string
	// code is the error, 0 for none, and text the message, or a part of it that
	// begins with an ellipsis.
	code servererr.Code
	text string
}

func (m *member) steps(t *testing.T, steps []step) {
	t.Helper()
	for _, s := range steps {
		reply := m.run(t, s.cmd)
		text, _ := reply.Lookup("errmsg").StringValueOK()
		right := text == s.text
		if part, ok := strings.CutPrefix(s.text, "…"); ok {
			right = strings.Contains(text, part)
		}
		if codeOf(reply) != s.code || !right {
			t.Errorf("%s\n got %v %s\nwant %v %s", s.cmd, codeOf(reply), text, s.code, s.text)
		}
	}
}

// payloads returns what the commands have logged since n entries, o only, without
// the operations on the collections that members keep for themselves.
func (m *member) payloads(t *testing.T, n int) (list []string) {
	t.Helper()
	for _, e := range m.entries(t)[n:] {
		if ns := e.Lookup("ns").StringValue(); !strings.HasPrefix(ns, "config.") {
			list = append(list, e.Lookup("o").String())
		}
	}
	return list
}

func TestCreateStoresAndLogs(t *testing.T) {
	for name, tc := range map[string]struct{ version, cmd, o string }{
		"size is rounded": {"5.0.7", `{create: "c", capped: true, size: 257.9, max: 3.5, $db: "d"}`, `{"capped": true,"size": {"$numberInt":"512"},"max": {"$numberInt":"3"}`},
		"no limit is the largest": {
			"5.0.7", `{create: "c", capped: true, size: 1, max: -1, $db: "d"}`,
			`{"capped": true,"size": {"$numberInt":"256"},"max": {"$numberInt":"2147483647"}`,
		},
		"a large size is a long":        {"5.0.7", `{create: "c", size: 4294967296, capped: 1, $db: "d"}`, `{"capped": true,"size": {"$numberLong":"4294967296"}`},
		"empty and false options go":    {"5.0.7", `{create: "c", validator: {}, recordPreImages: false, capped: false, collation: {locale: "simple"}, $db: "d"}`, `{`},
		"null is not given":             {"5.0.7", `{create: "c", size: null, validator: null, $db: "d"}`, `{`},
		"the server's order":            {"5.0.7", `{create: "c", validationAction: "warn", validator: {x: 1}, recordPreImages: true, $db: "d"}`, `{"recordPreImages": true,"validator": {"x": {"$numberInt":"1"}},"validationAction": "warn"`},
		"recordPreImages is ignored":    {"6.0.5", `{create: "c", recordPreImages: true, $db: "d"}`, `{`},
		"images":                        {"6.0.5", `{create: "c", changeStreamPreAndPostImages: {enabled: true}, $db: "d"}`, `{"changeStreamPreAndPostImages": {"enabled": true}`},
		"images that are off":           {"6.0.5", `{create: "c", changeStreamPreAndPostImages: {enabled: false}, $db: "d"}`, `{`},
		"the index on _id is completed": {"5.0.7", `{create: "c", idIndex: {key: {_id: 1.0}, name: "any"}, $db: "d"}`, `{`},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(t, tc.version)
			n := len(m.entries(t))
			m.steps(t, []step{{tc.cmd, 0, ""}})
			want := `{"create": "c",` + strings.TrimPrefix(tc.o, "{")
			if tc.o != "{" {
				want += ","
			}
			want += `"idIndex": {"v": {"$numberInt":"2"},"key": {"_id": {"$numberInt":"1"}},"name": "_id_"}}`
			if diff := cmp.Diff([]string{want}, m.payloads(t, n)); diff != "" {
				t.Error(diff)
			}
		})
	}
	m := newMember(t, "6.0.5")
	n := len(m.entries(t))
	m.steps(t, []step{{`{create: "c", clusteredIndex: {key: {_id: 1}, unique: true}, expireAfterSeconds: 60, $db: "d"}`, 0, ""}})
	want := []string{`{"create": "c","clusteredIndex": {"v": {"$numberInt":"2"},"key": {"_id": {"$numberInt":"1"}},"name": "_id_","unique": true},"expireAfterSeconds": {"$numberLong":"60"}}`}
	if diff := cmp.Diff(want, m.payloads(t, n)); diff != "" {
		t.Error(diff)
	}
	m.want(t, `{listIndexes: "c", $db: "d"}`, `{cursor: {id: {$numberLong: "0"}, ns: "d.c", firstBatch: [
		{v: 2, key: {_id: 1}, name: "_id_", unique: true, clustered: true}]}, ok: 1.0}`)
	newer := newMember(t, "8.0.4")
	newer.steps(t, []step{{`{create: "c", clusteredIndex: {key: {_id: 1}, unique: true}, expireAfterSeconds: 60, $db: "d"}`, 0, ""}})
	newer.want(t, `{listIndexes: "c", $db: "d"}`, `{cursor: {id: {$numberLong: "0"}, ns: "d.c", firstBatch: [
		{v: 2, key: {_id: 1}, name: "_id_", unique: true, expireAfterSeconds: {$numberLong: "60"}, clustered: true}]}, ok: 1.0}`)
	m.want(t, `{createIndexes: "c", indexes: [{key: {_id: 1}, name: "_id_"}], $db: "d"}`,
		`{numIndexesBefore: 0, numIndexesAfter: 0, note: "all indexes already exist", ok: 1.0}`)
	m.want(t, `{create: "x", autoIndexId: true, $db: "d"}`, `{note: "The autoIndexId option is deprecated and will be removed in a future release", ok: 1.0}`)
}

func TestCreateRefuses(t *testing.T) {
	m := newMember(t, "6.0.5")
	long := strings.Repeat("n", 254)
	m.steps(t, []step{
		{`{create: 1, $db: "d"}`, 2, "…invalid type int"},
		{`{create: "` + long + `", $db: "d"}`, 73, "Fully qualified namespace is too long. Namespace: d." + long + " Max: 255"},
		{`{create: "c", capped: true, size: 0, $db: "d"}`, 51024, "BSON field 'size' value must be >= 1, actual value '0'"},
		{`{create: "c", capped: true, size: "1", $db: "d"}`, 14, "BSON field 'create.size' is the wrong type 'string', expected types '[long, int, decimal, double]'"},
		{`{create: "c", capped: "yes", $db: "d"}`, 14, "…BSON field 'create.capped' is the wrong type 'string'"},
		{`{create: "c", capped: true, size: 2e15, $db: "d"}`, 2, "size cannot exceed 1 PB"},
		{`{create: "c", capped: true, size: 1, max: 3e9, $db: "d"}`, 2, "max in a capped collection has to be < 2^31 or not set"},
		{`{create: "c", size: 1, $db: "d"}`, 72, "the 'capped' field needs to be true when either the 'size' or 'max' fields are present"},
		{`{create: "c", validator: 1, $db: "d"}`, 14, "BSON field 'create.validator' is the wrong type 'int', expected type 'object'"},
		{`{create: "c", validator: {$bogus: 1}, $db: "d"}`, 2, "…$bogus"},
		{`{create: "c", validator: {x: 1}, $db: "admin"}`, 72, "Document validators are not allowed on collection admin.c in the admin internal database"},
		{`{create: "c", validationLevel: "some", $db: "d"}`, 2, "Enumeration value 'some' for field 'create.validationLevel' is not a valid value."},
		{`{create: "c", validationAction: "errorAndLog", $db: "d"}`, 2, "Enumeration value 'errorAndLog' for field 'create.validationAction' is not a valid value."},
		{`{create: "c", recordIdsReplicated: true, $db: "d"}`, 40415, "BSON field 'create.recordIdsReplicated' is an unknown field."},
		{`{create: "c", temp: true, $db: "d"}`, 72, "the 'temp' field is an invalid option"},
		{`{create: "c", autoIndexId: false, $db: "d"}`, 50001, "autoIndexId:false is not allowed for collection d.c because it can be replicated"},
		{`{create: "c", idIndex: {key: {x: 1}, name: "_id_"}, $db: "d"}`, 2, "…reserved for the _id index"},
		{`{create: "c", idIndex: {key: {_id: 1}, name: "_id_", sparse: true}, $db: "d"}`, 197, "…not valid for an _id index specification"},
		{`{create: "c", idIndex: {key: {_id: 1}, name: "_id_", collation: {locale: "fr"}}, $db: "d"}`, 2, "'idIndex' must have the same collation as the collection."},
		{`{create: "c", changeStreamPreAndPostImages: {}, $db: "d"}`, 40414, "BSON field 'create.changeStreamPreAndPostImages.enabled' is missing but a required field"},
		{`{create: "c", changeStreamPreAndPostImages: {enabled: true, x: 1}, $db: "d"}`, 40415, "…'create.changeStreamPreAndPostImages.x' is an unknown field."},
		{`{create: "c", changeStreamPreAndPostImages: {enabled: true}, recordPreImages: true, $db: "d"}`, 72, "…can not be set to true simultaneously"},
		{`{create: "c", storageEngine: {wiredTiger: 1}, $db: "d"}`, 2, "'storageEngine.wiredTiger' must be an embedded document"},
		{`{create: "c", storageEngine: {other: {}}, $db: "d"}`, 72, "other is not a registered storage engine for this server"},
		{`{create: "c", storageEngine: {wiredTiger: {x: 1}}, $db: "d"}`, 72, "'x' is not a supported option."},
		{`{create: "c", storageEngine: {wiredTiger: {configString: 1}}, $db: "d"}`, 14, "'configString' must be a string."},
		{`{create: "c", encryptedFields: {}, $db: "d"}`, 238, "…encryptedFields"},
		{`{create: "c", expireAfterSeconds: 1, $db: "d"}`, 72, "…'expireAfterSeconds' is only supported on time-series collections or when"},
		{`{create: "c", clusteredIndex: {key: {_id: 1}}, $db: "d"}`, 5979700, "The clusteredIndex option requires unique: true to be specified"},
		{`{create: "c", clusteredIndex: {key: {x: 1}, unique: true}, $db: "d"}`, 5979701, "The clusteredIndex option is only supported for key: {_id: 1}"},
		{`{create: "c", clusteredIndex: {key: {_id: 1}, unique: true}, size: 1, $db: "d"}`, 6049200, "…'size' field for capped collections is not allowed on clustered collections."},
		{`{create: "c", clusteredIndex: {key: {_id: 1}, unique: true}, expireAfterSeconds: -1, $db: "d"}`, 72, "TTL index 'expireAfterSeconds' option cannot be less than 0"},
		{`{create: "c", pipeline: [], $db: "d"}`, 72, "'pipeline' requires 'viewOn' to also be specified"},
	})
	old := newMember(t, "5.0.7")
	old.steps(t, []step{
		{`{create: "c", changeStreamPreAndPostImages: {enabled: true}, $db: "d"}`, 40415, "BSON field 'create.changeStreamPreAndPostImages' is an unknown field."},
		{`{create: "c", clusteredIndex: {key: {_id: 1}, unique: true}, $db: "d"}`, 72, "The 'clusteredIndex' option is not supported"},
		{`{create: "c", expireAfterSeconds: 1, $db: "d"}`, 72, "'expireAfterSeconds' is only supported on time-series collections"},
	})
	newMember(t, "8.0.0").steps(t, []step{
		{`{create: "c", recordIdsReplicated: true, $db: "d"}`, 115, "…without featureFlagRecordIdsReplicated enabled"},
		{`{create: "c", validator: {m: {$regex: "^[\\w-\\.]+$"}}, $db: "d"}`, 51091, "Regular expression is invalid: invalid range in character class"},
		{`{create: "c", validator: {m: {$regex: "^[\\w.-]+$"}}, $db: "d"}`, 0, ""},
	})
	newMember(t, "4.4.29").steps(t, []step{
		{`{create: "c", timeseries: {timeField: "t"}, $db: "d"}`, 40415, "BSON field 'create.timeseries' is an unknown field."},
		{`{collMod: "c", expireAfterSeconds: 1, $db: "d"}`, 72, "unknown option to collMod: expireAfterSeconds"},
	})
}

func TestCreateAgain(t *testing.T) {
	m := newMember(t, "7.0.2")
	m.steps(t, []step{
		{`{create: "c", capped: true, size: 100, $db: "d"}`, 0, ""},
		{`{create: "c", capped: true, size: 256, $db: "d"}`, 0, ""},
		{`{create: "c", $db: "d"}`, 48, "…namespace d.c already exists, but with different options: { uuid: UUID("},
		{`{create: "c", viewOn: "b", $db: "d"}`, 48, "namespace d.c already exists, but is not a view"},
		{`{create: "v", viewOn: "c", $db: "d"}`, 0, ""},
		{`{create: "v", viewOn: "c", pipeline: [], $db: "d"}`, 0, ""},
		{`{create: "v", viewOn: "c", pipeline: [{$limit: 1}], $db: "d"}`, 48, "…already exists"},
		{`{create: "v", $db: "d"}`, 48, "…already exists"},
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{create: "ts", timeseries: {timeField: "t", granularity: "seconds"}, $db: "d"}`, 0, ""},
		{`{create: "ts", timeseries: {timeField: "t", granularity: "hours"}, $db: "d"}`, 48, "…but with different options"},
		{`{drop: "missing", $db: "d"}`, 0, ""},
	})
}

// TestDDLWaitsForTransactions expects a command that meets what an open
// transaction has written to wait without logging anything.
func TestDDLWaitsForTransactions(t *testing.T) {
	for _, cmd := range []string{
		`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`, `{convertToCapped: "c", size: 1000, $db: "d"}`,
		`{renameCollection: "d.c", to: "e.c", $db: "admin"}`, `{renameCollection: "d.o", to: "e.t", dropTarget: true, $db: "admin"}`,
		`{drop: "c", $db: "d"}`, `{collMod: "c", validator: {x: 1}, $db: "d"}`,
	} {
		m := newMember(t, "5.0.7")
		for _, ns := range []string{`"c", $db: "d"`, `"o", $db: "d"`, `"t", $db: "e"`} {
			m.run(t, `{insert: `+strings.Replace(ns, ",", `, documents: [{_id: 0}],`, 1)+`}`)
		}
		m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
		m.want(t, `{insert: "t", documents: [{_id: 1}], `+inTxn(sessionA, 1, false)+`, $db: "e"}`, `{n: 1, ok: 1.0}`)
		n := len(m.entries(t))
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Millisecond)
		reply := m.CallOn(ctx, m.conn, parse(t, cmd))
		stop()
		if codeOf(reply) != servererr.MaxTimeMSExpired || len(m.entries(t)) != n {
			t.Errorf("%s: %s after %d entries", cmd, reply, len(m.entries(t))-n)
		}
		m.want(t, `{abortTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
		if reply := m.run(t, cmd); codeOf(reply) != 0 {
			t.Errorf("%s: %s", cmd, reply)
		}
	}
}
